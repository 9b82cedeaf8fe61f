#!lua
-- tune: change settings of a room, with an entry in the audit.
--
-- KEYS[1]   room        hash    settings and counters
-- KEYS[2]   operations  zset    operation -> the version it led to
-- KEYS[3]   audit       stream  who changed what, from what, to what
-- ARGV[1]   now         ms      0: the store's clock
-- ARGV[2]   operation   str     the change's own id: the same one again changes nothing
-- ARGV[3]   who         str     the operator
-- ARGV[4]   news        str     the channel
-- ARGV[5..] changes     pairs: rate | cap | paused | stock | message | opens_at | closes_at, then the value
-- returns   {"unseeded"} | {"tuned", version} | {"stock_too_low", held and sold} | {"no_stock"}
-- repeats   the same version again, and no second entry
-- lives     settings for ever; the last 1,000 operations; about 10,000 entries of the audit
-- cost      O(1); publishes
local room, operations, audit = KEYS[1], KEYS[2], KEYS[3]
local now, operation, who, news = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
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
-- [the token bucket, in micro admissions
-- At most one second of the rate, or one admission, is saved up. Time that is paused, before opening, in a rebuild or without free stock earns
-- nothing. A clock that went back a little (a new primary) must not earn the same second twice; one that went back far must not shut the door.
local function accrue(r, now)
  local top = r.rate == 0 and 0 or math.max(1000000, r.rate * 1000)
  local at = r.credit_at > now + 1000 and now or math.max(now, r.credit_at)
  if r.paused == 1 then return 0, at, false end
  if now < r.opens_at or now < r.shut_until or (r.stocked == 1 and (r.stock_known == 0 or r.free == 0)) then
    return math.min(top, r.credit), at, false
  end
  local earned = math.max(0, now - math.max(r.credit_at, r.opens_at, r.shut_until)) * r.rate
  return math.min(top, r.credit + earned), at, true
end
-- ]
now = clock(whole(now, 'now'))
kind(room, 'hash') kind(operations, 'zset') kind(audit, 'stream')
local names = { 'epoch', 'version', 'rate', 'cap', 'paused', 'opens_at', 'closes_at', 'shut_until', 'stocked', 'stock', 'free', 'held', 'sold',
  'stock_known', 'credit', 'credit_at' }
local fields, r = redis.call('HMGET', room, unpack(names)), {}
if not fields[1] then return { 'unseeded' } end
for i, name in ipairs(names) do r[name] = whole(fields[i] or '0', room .. ' ' .. name) end
local before_message = redis.call('HGET', room, 'message') or ''
local done = tonumber(redis.call('ZSCORE', operations, operation))
if done then return { 'tuned', say(done) } end

-- What was earned until now was earned at the old rate.
local credit, credit_at = accrue(r, now)
local before, after, set = {}, {}, {}
for i = 1, #changes, 2 do
  local name, value = changes[i], changes[i + 1]
  if name == 'message' then
    before.message, after.message = before_message, value
  elseif name == 'rate' or name == 'cap' or name == 'paused' or name == 'stock' or name == 'opens_at' or name == 'closes_at' then
    before[name], after[name] = say(r[name]), say(whole(value, name))
  else
    refuse('BADWORD setting')
  end
  set[#set + 1], set[#set + 2] = name, after[name]
end
if after.paused and after.paused ~= '0' and after.paused ~= '1' then refuse('BADNUMBER paused is neither 0 nor 1') end
if after.stock then
  if r.stocked == 0 then return { 'no_stock' } end
  local free = tonumber(after.stock) - r.held - r.sold
  if free < 0 then return { 'stock_too_low', say(r.held + r.sold) } end
  set[#set + 1], set[#set + 2], set[#set + 3], set[#set + 4] = 'free', say(free), 'stock_known', '1'
end
local rate = tonumber(after.rate or r.rate)
credit = math.min(credit, rate == 0 and 0 or math.max(1000000, rate * 1000))
if after.paused == '1' then credit = 0 end
local version = r.version + 1
redis.call('HSET', room, 'version', say(version), 'credit', say(credit), 'credit_at', say(credit_at), unpack(set))
redis.call('ZADD', operations, say(version), operation)
redis.call('ZREMRANGEBYRANK', operations, 0, -1001)
local function text(record) return next(record) and cjson.encode(record) or '{}' end
redis.call('XADD', audit, 'MAXLEN', '~', '10000', '*', 'who', who, 'at', say(now), 'operation', operation, 'before', text(before), 'after', text(after))
redis.call('PUBLISH', news, 'changed')
return { 'tuned', say(version) }
