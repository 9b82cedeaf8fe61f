#!lua
-- sweep: abandon the long away, and end turns, sessions and holds whose time is over. A batch of each kind.
--
-- KEYS[1]   room          hash    settings and counters
-- KEYS[2]   line          zset    ticket -> place, not passed yet
-- KEYS[3]   blocks        hash    place/1024 -> how many are in line beyond the frontier
-- KEYS[4]   away          zset    ticket -> when it is abandoned, ms
-- KEYS[5]   passed        zset    ticket -> place, passed over while it was away
-- KEYS[6]   called        zset    ticket -> when its turn lapses, ms
-- KEYS[7]   sessions      zset    ticket -> when its admission expires, ms
-- KEYS[8]   gone          zset    ticket -> when it is forgotten, ms
-- KEYS[9]   fates         hash    ticket -> left | lapsed | abandoned | ended
-- KEYS[10]  holds         zset    reservation -> when the hold ends, ms
-- KEYS[11]  reservations  hash    reservation -> its record, JSON
-- KEYS[12]  answers       hash    reservation -> the backend's first answer
-- KEYS[13]  claims        hash    buyer and key -> reservation
-- KEYS[14]  buyers        hash    buyer -> what it holds and has, JSON
-- KEYS[15]  finished      zset    reservation -> when it is forgotten, ms
-- KEYS[16]  log           stream  what happened to reservations
-- ARGV[1]   now           ms      0: the store's clock
-- ARGV[2]   memory_ms     ms      how long a fate, or a reservation that came to nothing, is remembered
-- ARGV[3]   batch         int     of each kind, at most
-- ARGV[4]   news          str     the channel
-- returns   {"unseeded"} | {"swept", abandoned, lapsed, ended, expired, forgotten, more(0|1)}
-- repeats   goes on with the next batch; nothing is ended twice
-- lives     fates and reservations that came to nothing for memory_ms; what was sold stays
-- cost      O(n log m) for n of each kind, at most `batch`
local room, line, blocks, away, passed, called, sessions, gone, fates =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local holds, reservations, answers, claims, buyers, finished, log = KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local now, memory_ms, batch, news = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
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
now, memory_ms, batch = clock(whole(now, 'now')), whole(memory_ms, 'memory_ms'), whole(batch, 'batch')
for _, key in ipairs({ line, away, passed, called, sessions, gone, holds, finished }) do kind(key, 'zset') end
for _, key in ipairs({ room, blocks, fates, reservations, answers, claims, buyers }) do kind(key, 'hash') end
kind(log, 'stream')
local names, r = { 'epoch', 'frontier', 'version', 'stocked', 'stock_known', 'free', 'held' }, {}
local fields = redis.call('HMGET', room, unpack(names))
if not fields[1] then return { 'unseeded' } end
for i, name in ipairs(names) do r[name] = whole(fields[i] or '0', room .. ' ' .. name) end

-- Read and check everything first.
local more = false
local function overdue(key)
  local list = redis.call('ZRANGE', key, '-inf', say(now), 'BYSCORE', 'LIMIT', 0, say(batch))
  if #list >= batch then more = true end
  return list
end
local long_away, no_shows, over, old, unpaid, done = overdue(away), overdue(called), overdue(sessions), overdue(gone), overdue(holds), overdue(finished)
local counts, lost = {}, {}
for _, ticket in ipairs(long_away) do
  local place = tonumber(redis.call('ZSCORE', line, ticket))
  if place and place > r.frontier then
    local block = say(math.floor(place / 1024))
    counts[block] = (counts[block] or whole(redis.call('HGET', blocks, block) or '0', blocks .. ' ' .. block)) - 1
  end
  if place or redis.call('ZSCORE', passed, ticket) then lost[#lost + 1] = ticket end
end
local ends, purses = {}, {}
local units_back = 0
for i, id in ipairs(unpaid) do
  local record = read(reservations, id) or refuse('BADRECORD ' .. reservations .. ' ' .. id .. ' is missing')
  whole(record.units, reservations .. ' ' .. id .. ' units')
  purses[record.user] = purses[record.user] or purse(buyers, record.user)
  units_back = units_back + record.units
  ends[i] = record
end
if units_back > r.held then refuse('BADNUMBER ' .. room .. ' held is less than its holds') end
local forgettable = {}
for i, id in ipairs(done) do forgettable[i] = read(reservations, id) or {} end

local function write(command, key, list)
  for from = 1, #list, 1000 do redis.call(command, key, unpack(list, from, math.min(from + 999, #list))) end
end
local function part(tickets, fate)
  local goes, why = {}, {}
  for _, ticket in ipairs(tickets) do
    goes[#goes + 1], goes[#goes + 2] = say(now + memory_ms), ticket
    why[#why + 1], why[#why + 2] = ticket, fate
  end
  write('ZADD', gone, goes)
  write('HSET', fates, why)
end
-- The old before the new: what ends now is remembered from now.
write('ZREM', gone, old)
write('HDEL', fates, old)
write('ZREM', away, long_away)
write('ZREM', line, lost)
write('ZREM', passed, lost)
part(lost, 'abandoned')
for block, count in pairs(counts) do
  if count > 0 then redis.call('HSET', blocks, block, say(count)) else redis.call('HDEL', blocks, block) end
end
write('ZREM', called, no_shows)
part(no_shows, 'lapsed')
write('ZREM', sessions, over)
part(over, 'ended')

write('ZREM', holds, unpaid)
for i, id in ipairs(unpaid) do
  local record = ends[i]
  local buyer = purses[record.user]
  record.state = 'expired'
  redis.call('HSET', reservations, id, cjson.encode(record))
  buyer.held = say(math.max(0, buyer.held - record.units))
  if buyer.live == id then buyer.live = '' end
  redis.call('HSET', buyers, record.user, cjson.encode(buyer))
  redis.call('ZADD', finished, say(now + memory_ms), id)
  redis.call('XADD', log, 'MAXLEN', '~', '1000000', '*', 'event', 'expired', 'reservation', id, 'user', record.user, 'units', record.units, 'at', say(now))
end
for i, id in ipairs(done) do
  local record = forgettable[i]
  redis.call('HDEL', reservations, id)
  redis.call('HDEL', answers, id)
  if record.user and record.key ~= '' then
    local field = claim_field(record.user, record.key)
    if redis.call('HGET', claims, field) == id then redis.call('HDEL', claims, field) end
  end
end
write('ZREM', finished, done)
if #unpaid > 0 then redis.call('HSET', room, 'free', say(r.free + units_back), 'held', say(r.held - units_back)) end
if #lost + #no_shows + #over + #unpaid > 0 then
  redis.call('HSET', room, 'version', say(r.version + 1))
  redis.call('PUBLISH', news, 'changed')
end
return { 'swept', say(#lost), say(#no_shows), say(#over), say(#unpaid), say(#old + #done), more and '1' or '0' }
