#!lua
-- answer: keep the backend's answer to a claim, or note that nobody knows it.
--
-- KEYS[1]   reservations  hash  reservation -> its record, JSON
-- KEYS[2]   answers       hash  reservation -> the backend's first answer
-- ARGV[1]   reservation   str   its id
-- ARGV[2]   outcome       str   kept | unknown
-- ARGV[3]   answer        str   with kept: the bytes
-- returns   {"kept"} | {"kept_before"} | {"unknown"} | {"missing"}
-- repeats   the first answer stays, whatever comes after
-- lives     as long as the reservation
-- cost      O(1)
local reservations, answers = KEYS[1], KEYS[2]
local reservation, outcome, answer = ARGV[1], ARGV[2], ARGV[3]
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
if outcome ~= 'kept' and outcome ~= 'unknown' then refuse('BADWORD outcome') end
kind(reservations, 'hash') kind(answers, 'hash')
local record = read(reservations, reservation)
if not record then return { 'missing' } end
if outcome == 'kept' then
  return { redis.call('HSETNX', answers, reservation, answer) == 1 and 'kept' or 'kept_before' }
end
if redis.call('HEXISTS', answers, reservation) == 1 then return { 'kept_before' } end
record.unknown = '1'
redis.call('HSET', reservations, reservation, cjson.encode(record))
return { 'unknown' }
