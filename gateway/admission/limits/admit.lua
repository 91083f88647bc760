-- Admits requests, or refuses them. KEYS are the tallies of their keys, ARGV their limits; a key may occur again.
-- Returns for each whether it is admitted (1 or 0), the requests that remain, and the seconds until more do.
-- With the limit -1 it counts nothing, and returns the requests in the current window instead of those that remain.
--
-- The tally is a list of "second:admitted", oldest first: the number of requests admitted from the
-- beginning of the tally to the end of that second. The first entry has expired; the others are
-- counted relative to it. There are at most 3,602 entries, whatever the limit.
--
-- in_process.py implements the same rule: keep the two in agreement.

local RETAINED = 3601
local now = tonumber(redis.call('TIME')[1])

local function admit(tally, limit)
  if limit == 0 then return {0, 0, RETAINED} end

  local function entry(at)
    local second, admitted = string.match(redis.call('LINDEX', tally, at), '^(%d+):(%d+)$')
    return tonumber(second), tonumber(admitted)
  end

  -- Finds the first entry from `low` on for which `holds` is true; `high` if there is none before it.
  local function first(low, high, holds)
    if holds(entry(low)) then return low end
    while low < high do
      local middle = math.floor((low + high) / 2)
      if holds(entry(middle)) then high = middle else low = middle + 1 end
    end
    return low
  end

  local length = redis.call('LLEN', tally)

  -- Redis's clock was set back by more than an hour: the times recorded until then are meaningless.
  if length > 1 and entry(-1) > now + RETAINED then
    redis.call('DEL', tally)
    length = 0
  end
  if length == 0 then
    if limit < 0 then return {0, 0, 0} end
    length = redis.call('RPUSH', tally, '0:0')
  end

  if length > 1 and entry(1) + RETAINED <= now then
    local counts = function(second) return second + RETAINED > now end
    local live = first(1, length, counts)
    redis.call('LTRIM', tally, live - 1, -1)
    length = length - live + 1
  end

  local _, before = entry(0)
  local newest, admitted = entry(-1)

  if limit < 0 then return {0, admitted - before, 0} end

  if admitted - before >= limit then
    -- The entry that has to expire before a request is admitted: the first, unless the limit was lowered.
    local function frees(_, upto) return upto > admitted - limit end
    return {0, 0, entry(first(1, length, frees)) + RETAINED - now}
  end

  admitted = admitted + 1
  if length > 1 and newest >= now then
    redis.call('LSET', tally, -1, string.format('%d:%d', newest, admitted))
  else
    newest = now
    redis.call('RPUSH', tally, string.format('%d:%d', now, admitted))
  end
  redis.call('EXPIRE', tally, newest - now + RETAINED)
  return {1, limit - (admitted - before), entry(1) + RETAINED - now}
end

local replies = {}
for number, tally in ipairs(KEYS) do replies[number] = admit(tally, tonumber(ARGV[number])) end
return replies
