-- Returns the number of requests in the current window of each tally in KEYS; changes nothing.
-- admit.lua describes tallies.

local RETAINED = 3601
local now = tonumber(redis.call('TIME')[1])

local function count_requests(tally)
  local function entry(at)
    local second, admitted = string.match(redis.call('LINDEX', tally, at), '^(%d+):(%d+)$')
    return tonumber(second), tonumber(admitted)
  end

  local length = redis.call('LLEN', tally)
  -- The same cases in which admit.lua starts a new tally.
  if length < 2 or entry(-1) > now + RETAINED then return 0 end
  local low, high = 1, length
  while low < high do
    local middle = math.floor((low + high) / 2)
    if entry(middle) + RETAINED > now then high = middle else low = middle + 1 end
  end
  local _, before = entry(low - 1)
  local _, admitted = entry(-1)
  return admitted - before
end

local counts = {}
for _, tally in ipairs(KEYS) do counts[#counts + 1] = count_requests(tally) end
return counts
