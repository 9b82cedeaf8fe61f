#!lua flags=no-writes
-- show: how a room is now.
--
-- KEYS[1]   room      hash  settings and counters
-- KEYS[2]   line      zset  ticket -> place, not passed yet
-- KEYS[3]   away      zset  ticket -> when it is abandoned, ms
-- KEYS[4]   called    zset  ticket -> when its turn lapses, ms
-- KEYS[5]   sessions  zset  ticket -> when its admission expires, ms
-- ARGV[1]   now       ms    0: the store's clock
-- returns   {"unseeded"} | {"shown", message, now, waiting, away, called, sessions, then the numbers of the room in the order of `names`}
-- repeats   writes nothing
-- lives     writes nothing
-- cost      O(log n)
local room, line, away, called, sessions = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local now = ARGV[1]
-- [the same words in every script
local MOST = 9007199254740991
local function refuse(reason) error({ err = reason }) end
local function kind(key, wanted)
  local is = redis.call('TYPE', key).ok
  if is ~= wanted and is ~= 'none' then refuse('WRONGKEY ' .. key .. ' holds a ' .. is .. ', not a ' .. wanted) end
  return is == wanted
end
local function whole(text, name)
  local value = tonumber(text)
  if not value or value < 0 or value > MOST or value ~= math.floor(value) then
    refuse('BADNUMBER ' .. name .. ' is not a whole number below 2^53')
  end
  return value
end
local function say(value) return string.format('%.0f', value) end
local function clock(given)
  if given > 0 then return given end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- ]
now = clock(whole(now, 'now'))
kind(room, 'hash') kind(line, 'zset') kind(away, 'zset') kind(called, 'zset') kind(sessions, 'zset')
local names = { 'epoch', 'version', 'frontier', 'rate', 'cap', 'paused', 'opens_at', 'closes_at', 'shut_until', 'stocked', 'stock', 'free',
  'held', 'sold', 'stock_known', 'joined_total', 'called_total' }
local fields = redis.call('HMGET', room, unpack(names))
if not fields[1] then return { 'unseeded' } end
local alive = '(' .. say(now)
local answer = { 'shown', redis.call('HGET', room, 'message') or '', say(now), say(redis.call('ZCARD', line)), say(redis.call('ZCARD', away)),
  say(redis.call('ZCOUNT', called, alive, '+inf')), say(redis.call('ZCOUNT', sessions, alive, '+inf')) }
for i, name in ipairs(names) do answer[#answer + 1] = say(whole(fields[i] or '0', room .. ' ' .. name)) end
return answer
