#!lua
-- depart: mark the disconnected away, those who came back present, and take leavers out of the line.
--
-- KEYS[1]   room       hash  settings and counters
-- KEYS[2]   line       zset  ticket -> place, not passed yet
-- KEYS[3]   blocks     hash  place/1024 -> how many are in line beyond the frontier
-- KEYS[4]   away       zset  ticket -> when it is abandoned, ms
-- KEYS[5]   passed     zset  ticket -> place, passed over while it was away
-- KEYS[6]   called     zset  ticket -> when its turn lapses, ms
-- KEYS[7]   sessions   zset  ticket -> when its admission expires, ms
-- KEYS[8]   gone       zset  ticket -> when it is forgotten, ms
-- KEYS[9]   fates      hash  ticket -> left | lapsed | abandoned | ended
-- ARGV[1]   now        ms    0: the store's clock
-- ARGV[2]   grace_ms   ms    away for this long: abandoned
-- ARGV[3]   memory_ms  ms    how long a fate is remembered
-- ARGV[4]   news       str   the channel
-- ARGV[5..] changes    triples: away | back | leave, ticket, the place it carries (0: none)
-- returns   {"unseeded"} | {"departed"}
-- repeats   changes nothing: away keeps its first deadline, gone its first fate
-- lives     away until back or abandoned; gone for memory_ms
-- cost      O(n log m) for n changes in a line of m; publishes who went away, for a gateway that still holds a stream of theirs
local room, line, blocks, away, passed, called, sessions, gone, fates =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, grace_ms, memory_ms, news = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local changes = {}
for i = 5, #ARGV do changes[i - 4] = ARGV[i] end
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
now, grace_ms, memory_ms = clock(whole(now, 'now')), whole(grace_ms, 'grace_ms'), whole(memory_ms, 'memory_ms')
kind(room, 'hash') kind(line, 'zset') kind(blocks, 'hash') kind(away, 'zset') kind(passed, 'zset')
kind(called, 'zset') kind(sessions, 'zset') kind(gone, 'zset') kind(fates, 'hash')
local frontier = redis.call('HMGET', room, 'epoch', 'frontier')
if not frontier[1] then return { 'unseeded' } end
frontier = whole(frontier[2] or '0', room .. ' frontier')
for i = 1, #changes, 3 do
  if changes[i] ~= 'away' and changes[i] ~= 'back' and changes[i] ~= 'leave' then refuse('BADWORD change') end
  whole(changes[i + 2], 'place')
  -- Any count this batch may touch is read before anything is written.
  local place = tonumber(redis.call('ZSCORE', line, changes[i + 1]))
  if place then
    local block = say(math.floor(place / 1024))
    whole(redis.call('HGET', blocks, block) or '0', blocks .. ' ' .. block)
  end
end

local function uncount(place)
  if place <= frontier then return end
  local block = say(math.floor(place / 1024))
  local left = tonumber(redis.call('HGET', blocks, block) or '0') - 1
  if left > 0 then redis.call('HSET', blocks, block, say(left)) else redis.call('HDEL', blocks, block) end
end

local left_us = {}
for i = 1, #changes, 3 do
  local change, ticket, carried = changes[i], changes[i + 1], tonumber(changes[i + 2])
  local place = tonumber(redis.call('ZSCORE', line, ticket))
  if change == 'away' then
    -- The called and the admitted have their own deadlines.
    if place and redis.call('ZADD', away, 'NX', say(now + grace_ms), ticket) == 1 then left_us[#left_us + 1] = ticket end
  elseif change == 'back' then
    local was_away = redis.call('ZREM', away, ticket) == 1
    local at = tonumber(redis.call('ZSCORE', passed, ticket))
    -- Passed over: its place is behind the frontier, so it is next, and counted in no block.
    if not at and was_away and not place and carried > 0 and carried <= frontier then at = carried end
    if at and not place then redis.call('ZADD', line, say(at), ticket) end
    redis.call('ZREM', passed, ticket)
  elseif redis.call('ZSCORE', sessions, ticket) == false and redis.call('HSETNX', fates, ticket, 'left') == 1 then
    redis.call('ZADD', gone, say(now + memory_ms), ticket)
    if place then
      redis.call('ZREM', line, ticket)
      uncount(place)
    end
    for _, key in ipairs({ away, passed, called }) do redis.call('ZREM', key, ticket) end
  end
end
for from = 1, #left_us, 500 do
  redis.call('PUBLISH', news, 'away ' .. table.concat(left_us, ' ', from, math.min(from + 499, #left_us)))
end
return { 'departed' }
