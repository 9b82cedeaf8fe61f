#!lua
-- claim: take units for a buyer and hold them, unless this claim was made before.
--
-- KEYS[1]   room          hash    settings and counters
-- KEYS[2]   holds         zset    reservation -> when the hold ends, ms
-- KEYS[3]   reservations  hash    reservation -> its record, JSON
-- KEYS[4]   answers       hash    reservation -> the backend's first answer
-- KEYS[5]   claims        hash    buyer and key -> reservation
-- KEYS[6]   buyers        hash    buyer -> what it holds and has, JSON
-- KEYS[7]   log           stream  what happened to reservations
-- ARGV[1]   now           ms      0: the store's clock
-- ARGV[2]   user          str     the buyer
-- ARGV[3]   key           str     its idempotency key; "" for none
-- ARGV[4]   fingerprint   str     of the request
-- ARGV[5]   reservation   str     the id, should units be taken
-- ARGV[6]   units         int     asked for
-- ARGV[7]   limit         int     one buyer may have
-- ARGV[8]   hold_ms       ms      how long to hold
-- ARGV[9]   flight_ms     ms      how long the backend has to answer
-- ARGV[10]  news          str     the channel
-- returns   {"unseeded"} | {"reserved", id, user, units, until, state} | {"already", id, user, units, until, state, in_flight|unknown|kept,
--           the answer, same(0|1)} | {"mismatch"} | {"limit"} | {"stock_unknown"} | {"sold_out"} | {"all_held"} | {"too_few", free}
-- repeats   with the same reservation id: "reserved" with the same hold, for the caller never heard of it; with the same key: "already"
-- lives     until it is paid, released or expires
-- cost      O(log n) in the number of holds; publishes when the last free unit goes
local room, holds, reservations, answers, claims, buyers, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, user, key, fingerprint, reservation = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local units, limit, hold_ms, flight_ms, news = ARGV[6], ARGV[7], ARGV[8], ARGV[9], ARGV[10]
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
now, units, limit = clock(whole(now, 'now')), whole(units, 'units'), whole(limit, 'limit')
hold_ms, flight_ms = whole(hold_ms, 'hold_ms'), whole(flight_ms, 'flight_ms')
if units < 1 then refuse('BADNUMBER units is 0') end
if reservation == '' then refuse('BADWORD reservation') end
kind(room, 'hash') kind(holds, 'zset') kind(reservations, 'hash') kind(answers, 'hash') kind(claims, 'hash') kind(buyers, 'hash')
kind(log, 'stream')
local names, r = { 'epoch', 'version', 'stocked', 'stock_known', 'free', 'held' }, {}
local fields = redis.call('HMGET', room, unpack(names))
if not fields[1] then return { 'unseeded' } end
for i, name in ipairs(names) do r[name] = whole(fields[i] or '0', room .. ' ' .. name) end
if r.stocked == 0 then refuse('NOSTOCK ' .. room .. ' sells nothing') end

local function outline(word, id, record) return { word, id, record.user, record.units, record['until'], record.state } end
local function already(id, record)
  local kept, same = redis.call('HGET', answers, id), record.fingerprint == fingerprint
  local said = outline('already', id, record)
  if kept then
    said[7], said[8] = 'kept', kept
  elseif record.unknown ~= '1' and now < whole(record.flight, reservations .. ' ' .. id .. ' flight') then
    said[7], said[8] = 'in_flight', ''
  else
    said[7], said[8] = 'unknown', ''
    -- One caller is told that it may send again; until that one has an answer the claim is in flight once more.
    if same and record.state == 'held' then
      record.unknown, record.flight = '0', say(now + flight_ms)
      redis.call('HSET', reservations, id, cjson.encode(record))
    end
  end
  said[9] = same and '1' or '0'
  return said
end

local own = read(reservations, reservation)
if own then
  if own.user ~= user or own.fingerprint ~= fingerprint then return { 'mismatch' } end
  if own.state == 'held' and redis.call('HEXISTS', answers, reservation) == 0 then return outline('reserved', reservation, own) end
  return already(reservation, own)
end
local field = claim_field(user, key)
local before = key ~= '' and redis.call('HGET', claims, field)
if before then
  local record = read(reservations, before) or refuse('BADRECORD ' .. reservations .. ' ' .. before .. ' is missing')
  if record.fingerprint ~= fingerprint then return { 'mismatch' } end
  return already(before, record)
end
local buyer = purse(buyers, user)
if buyer.live ~= '' then
  local record = read(reservations, buyer.live) or refuse('BADRECORD ' .. reservations .. ' ' .. buyer.live .. ' is missing')
  return already(buyer.live, record)
end
if buyer.held + buyer.sold + units > limit then
  local record = buyer.bought ~= '' and read(reservations, buyer.bought)
  if record then return already(buyer.bought, record) end
  return { 'limit' }
end
if r.stock_known == 0 then return { 'stock_unknown' } end
if r.free == 0 then return { class(r) } end
if r.free < units then return { 'too_few', say(r.free) } end

local record = { user = user, key = key, fingerprint = fingerprint, units = say(units), limit = say(limit), ['until'] = say(now + hold_ms),
  flight = say(now + flight_ms), made = say(now), state = 'held', unknown = '0', refund = '0' }
r.free, r.held = r.free - units, r.held + units
buyer.held, buyer.live = say(buyer.held + units), reservation
redis.call('HSET', room, 'free', say(r.free), 'held', say(r.held))
redis.call('ZADD', holds, record['until'], reservation)
redis.call('HSET', reservations, reservation, cjson.encode(record))
redis.call('HSET', buyers, user, cjson.encode(buyer))
if key ~= '' then redis.call('HSET', claims, field, reservation) end
redis.call('XADD', log, 'MAXLEN', '~', '1000000', '*', 'event', 'reserved', 'reservation', reservation, 'user', user, 'units', record.units,
  'until', record['until'], 'at', say(now))
if r.free == 0 then
  redis.call('HSET', room, 'version', say(r.version + 1))
  redis.call('PUBLISH', news, 'changed')
end
return outline('reserved', reservation, record)
