#!lua
-- redeem: turn "called" into one admission.
--
-- KEYS[1]   room          hash  settings and counters
-- KEYS[2]   line          zset  ticket -> place, not passed yet
-- KEYS[3]   away          zset  ticket -> when it is abandoned, ms
-- KEYS[4]   passed        zset  ticket -> place, passed over while it was away
-- KEYS[5]   called        zset  ticket -> when its turn lapses, ms
-- KEYS[6]   sessions      zset  ticket -> when its admission expires, ms
-- KEYS[7]   fates         hash  ticket -> left | lapsed | abandoned | ended
-- ARGV[1]   now           ms    0: the store's clock
-- ARGV[2]   admission_ms  ms    how long an admission lasts
-- ARGV[3]   ticket        str   the visitor's ticket
-- returns   {"unseeded"} | {"admitted", until} | {"waiting"} | {"gone", fate} | {"unknown"}
-- repeats   the same admission, however often: a lost reply must not lose the turn, and two tabs must not make two
-- lives     until the admission expires; `sweep` deletes it
-- cost      O(log n)
local room, line, away, passed, called, sessions, fates = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, admission_ms, ticket = ARGV[1], ARGV[2], ARGV[3]
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
now, admission_ms = clock(whole(now, 'now')), whole(admission_ms, 'admission_ms')
kind(room, 'hash') kind(line, 'zset') kind(away, 'zset') kind(passed, 'zset')
kind(called, 'zset') kind(sessions, 'zset') kind(fates, 'hash')
if redis.call('HEXISTS', room, 'epoch') == 0 then return { 'unseeded' } end

local session = tonumber(redis.call('ZSCORE', sessions, ticket))
if session then
  if session > now then return { 'admitted', say(session) } end
  return { 'gone', 'ended' }
end
local turn = tonumber(redis.call('ZSCORE', called, ticket))
if turn then
  if turn <= now then return { 'gone', 'lapsed' } end
  redis.call('ZREM', called, ticket)
  redis.call('ZREM', away, ticket)
  redis.call('ZADD', sessions, say(now + admission_ms), ticket)
  return { 'admitted', say(now + admission_ms) }
end
if redis.call('ZSCORE', line, ticket) or redis.call('ZSCORE', passed, ticket) then return { 'waiting' } end
local fate = redis.call('HGET', fates, ticket)
if fate then return { 'gone', fate } end
return { 'unknown' }
