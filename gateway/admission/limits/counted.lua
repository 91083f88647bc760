-- How many requests of each tally count at this moment; changes nothing. See admit.lua for what a
-- tally is. KEYS are tallies, and the answer has a number for each.

local KEPT = 3601
local now = tonumber(redis.call('TIME')[1])

local function counted(tally)
  local function entry(at)
    local second, admitted = string.match(redis.call('LINDEX', tally, at), '^(%d+):(%d+)$')
    return tonumber(second), tonumber(admitted)
  end

  local length = redis.call('LLEN', tally)
  if length < 2 or entry(-1) > now + KEPT then return 0 end
  local low, high = 1, length
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(middle) + KEPT > now then high = middle else low = middle + 1 end
  end
  local _, before = entry(low - 1)
  local _, admitted = entry(-1)
  return admitted - before
end

local found = {}
for _, tally in ipairs(KEYS) do found[#found + 1] = counted(tally) end
return found
