#!lua
-- settle: confirm or release one reservation, exactly once.
--
-- KEYS[1]   room          hash    settings and counters
-- KEYS[2]   holds         zset    reservation -> when the hold ends, ms
-- KEYS[3]   reservations  hash    reservation -> its record, JSON
-- KEYS[4]   answers       hash    reservation -> the backend's first answer
-- KEYS[5]   buyers        hash    buyer -> what it holds and has, JSON
-- KEYS[6]   finished      zset    reservation -> when it is forgotten, ms
-- KEYS[7]   log           stream  what happened to reservations
-- ARGV[1]   now           ms      0: the store's clock
-- ARGV[2]   memory_ms     ms      how long a reservation that came to nothing is remembered
-- ARGV[3]   reservation   str     its id
-- ARGV[4]   verdict       str     confirm | release
-- ARGV[5]   answer        bytes   the backend's answer, to be kept as the first; "" for none
-- ARGV[6]   news          str     the channel
-- returns   {"unseeded"} | {"confirmed"} | {"confirmed_before"} | {"retaken"} | {"refund"} | {"released"} | {"released_before"} | {"sold"} |
--           {"missing"}
-- repeats   "…_before", and for a refund "refund" again even when units came back: the buyer's money is on its way
-- lives     sold for ever; released for memory_ms
-- cost      O(log n) in the number of holds; publishes when what can be bought changed
local room, holds, reservations, answers, buyers, finished, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, memory_ms, reservation, verdict, answer, news = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
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
-- [the records of reservations and buyers: JSON whose values are all strings, so that no number loses a digit
local function read(key, field)
  local text = redis.call('HGET', key, field)
  if not text then return nil end
  local fine, record = pcall(cjson.decode, text)
  if not fine or type(record) ~= 'table' then refuse('BADRECORD ' .. key .. ' ' .. field .. ' is not JSON') end
  return record
end
local function purse(key, user)
  local buyer = read(key, user) or { held = '0', sold = '0', live = '', bought = '' }
  whole(buyer.held, key .. ' ' .. user .. ' held')
  whole(buyer.sold, key .. ' ' .. user .. ' sold')
  return buyer
end
local function claim_field(user, key) return #user .. '|' .. user .. '|' .. key end
local function class(r)
  if r.stocked == 0 then return 'none' end
  if r.stock_known == 0 then return 'unknown' end
  if r.free > 0 then return 'available' end
  return r.held > 0 and 'all_held' or 'sold_out'
end
-- ]
now, memory_ms = clock(whole(now, 'now')), whole(memory_ms, 'memory_ms')
if verdict ~= 'confirm' and verdict ~= 'release' then refuse('BADWORD verdict') end
kind(room, 'hash') kind(holds, 'zset') kind(reservations, 'hash') kind(answers, 'hash') kind(buyers, 'hash') kind(finished, 'zset')
kind(log, 'stream')
local names, r = { 'epoch', 'version', 'stocked', 'stock_known', 'free', 'held', 'sold' }, {}
local fields = redis.call('HMGET', room, unpack(names))
if not fields[1] then return { 'unseeded' } end
for i, name in ipairs(names) do r[name] = whole(fields[i] or '0', room .. ' ' .. name) end
local record = read(reservations, reservation)
if not record then return { 'missing' } end
local units, limit = whole(record.units, reservations .. ' units'), whole(record.limit, reservations .. ' limit')
local buyer = purse(buyers, record.user)
local was = class(r)
-- The hold itself decides who comes first: payment, release and expiry all have to take it away, and only one can.
local held = redis.call('ZSCORE', holds, reservation) and record.state == 'held'
if held and units > r.held then refuse('BADNUMBER ' .. room .. ' held is less than its holds') end

local function close(state, event)
  record.state = state
  if redis.call('ZREM', holds, reservation) == 1 then
    r.held = r.held - units
    buyer.held = say(math.max(0, buyer.held - units))
  end
  if buyer.live == reservation then buyer.live = '' end
  if state == 'sold' then
    r.sold = r.sold + units
    buyer.sold, buyer.bought = say(buyer.sold + units), reservation
    redis.call('ZREM', finished, reservation)
  else
    redis.call('ZADD', finished, say(now + memory_ms), reservation)
  end
  redis.call('HSET', reservations, reservation, cjson.encode(record))
  redis.call('HSET', buyers, record.user, cjson.encode(buyer))
  redis.call('HSET', room, 'free', say(r.free), 'held', say(r.held), 'sold', say(r.sold))
  redis.call('XADD', log, 'MAXLEN', '~', '1000000', '*', 'event', event, 'reservation', reservation, 'user', record.user, 'units', record.units,
    'at', say(now))
  if answer ~= '' then redis.call('HSETNX', answers, reservation, answer) end
  if class(r) ~= was then
    redis.call('HSET', room, 'version', say(r.version + 1))
    redis.call('PUBLISH', news, 'changed')
  end
end

if verdict == 'release' then
  if held then
    r.free = r.free + units
    close('released', 'released')
    return { 'released' }
  end
  return { record.state == 'sold' and 'sold' or 'released_before' }
end
if held then
  close('sold', 'confirmed')
  return { 'confirmed' }
end
if record.state == 'sold' then return { 'confirmed_before' } end
local fits = buyer.live == '' and buyer.held + buyer.sold + units <= limit
if record.refund ~= '1' and r.stock_known == 1 and r.free >= units and fits then
  r.free = r.free - units
  close('sold', 'retaken')
  return { 'retaken' }
end
if record.refund ~= '1' then
  record.refund = '1'
  redis.call('HSET', reservations, reservation, cjson.encode(record))
  redis.call('XADD', log, 'MAXLEN', '~', '1000000', '*', 'event', 'refund', 'reservation', reservation, 'user', record.user, 'units', record.units,
    'at', say(now))
end
return { 'refund' }
