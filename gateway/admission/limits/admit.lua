-- Admits a request of one key, or refuses it. KEYS[1] is the key's tally, ARGV[1] its limit.
-- Answers whether it is admitted (1 or 0), what remains, and the seconds until more does.
--
-- The tally is a list of "second:admitted", oldest first: how many requests were admitted up to
-- the end of that second, since the tally began. Its first entry has ceased to count; the others
-- are counted from it. At most 3,602 entries, whatever the limit.
--
-- The same is done in in_process.py, and the two have to agree.

local KEPT = 3601
local tally, limit = KEYS[1], tonumber(ARGV[1])
local now = tonumber(redis.call('TIME')[1])

if limit < 1 then return {0, 0, KEPT} end

local function entry(at)
  local second, admitted = string.match(redis.call('LINDEX', tally, at), '^(%d+):(%d+)$')
  return tonumber(second), tonumber(admitted)
end

-- The first entry from `low` on of which something holds; `high` where there is none before.
local function first(low, high, holds)
  if holds(entry(low)) then return low end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if holds(entry(middle)) then high = middle else low = middle + 1 end
  end
  return low
end

local length = redis.call('LLEN', tally)

-- Redis's clock was set back by more than an hour: what it said until then is void.
if length > 1 and entry(-1) > now + KEPT then
  redis.call('DEL', tally)
  length = 0
end
if length == 0 then
  length = redis.call('RPUSH', tally, '0:0')
end

if length > 1 and entry(1) + KEPT <= now then
  local counts = function(second) return second + KEPT > now end
  local live = first(1, length, counts)
  redis.call('LTRIM', tally, live - 1, -1)
  length = length - live + 1
end

local _, before = entry(0)
local newest, admitted = entry(-1)

if admitted - before >= limit then
  -- Which entry has to go for one place to be free: the first, unless the limit was lowered.
  local function frees(_, upto) return upto > admitted - limit end
  return {0, 0, entry(first(1, length, frees)) + KEPT - now}
end

admitted = admitted + 1
if length > 1 and newest >= now then
  redis.call('LSET', tally, -1, string.format('%d:%d', newest, admitted))
else
  newest = now
  redis.call('RPUSH', tally, string.format('%d:%d', now, admitted))
end
redis.call('EXPIRE', tally, newest - now + KEPT)
return {1, limit - (admitted - before), entry(1) + KEPT - now}
