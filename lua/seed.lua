#!lua
-- seed: make the room, once. A room that is there is left as it is.
--
-- KEYS[1]   room        hash  settings and counters
-- ARGV[1]   now         ms    0: the store's clock
-- ARGV[2]   rate        int   admissions per 1,000 seconds
-- ARGV[3]   cap         int   called and admitted at once at most; 0: no cap
-- ARGV[4]   stock       int   units for sale; "" for a room without
-- ARGV[5]   opens_at    ms    0: open
-- ARGV[6]   closes_at   ms    0: never
-- ARGV[7]   rebuild_ms  ms    after a loss: how long the door stays shut; "" when nothing was lost
-- returns   {"seeded", epoch} | {"exists", epoch}
-- repeats   "exists", with the same epoch
-- lives     for ever
-- cost      O(1)
local room = KEYS[1]
local now, rate, cap, stock, opens_at, closes_at, rebuild_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
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
now, rate, cap = clock(whole(now, 'now')), whole(rate, 'rate'), whole(cap, 'cap')
opens_at, closes_at = whole(opens_at, 'opens_at'), whole(closes_at, 'closes_at')
kind(room, 'hash')
local known = redis.call('HGET', room, 'epoch')
if known then return { 'exists', say(whole(known, room .. ' epoch')) } end
local lost = rebuild_ms ~= ''
local shut_until = lost and now + whole(rebuild_ms, 'rebuild_ms') or 0
local stocked = stock ~= ''
stock = stocked and whole(stock, 'stock') or 0

-- 2026-01-01 is 1767225600 s. 2^18 places a second: no line is ever handed out faster than its epoch grows.
local epoch = math.max(1, math.floor(now / 1000) - 1767225600)
-- Nobody has been called yet, so the frontier is 0: tickets of a lost line come back to places below this epoch's first, and wait there.
redis.call('HSET', room, 'epoch', say(epoch), 'last', say(epoch * 262144), 'frontier', '0', 'rate', say(rate), 'cap', say(cap),
  'paused', '0', 'message', '', 'opens_at', say(opens_at), 'closes_at', say(closes_at), 'shut_until', say(shut_until),
  'stocked', stocked and '1' or '0', 'stock', say(stock), 'free', lost and '0' or say(stock), 'held', '0', 'sold', '0',
  'stock_known', lost and '0' or '1', 'credit', (lost or rate == 0) and '0' or '1000000', 'credit_at', say(now), 'version', say(now),
  'joined_total', '0', 'called_total', '0', 'beat_at', '0')
return { 'seeded', say(epoch) }
