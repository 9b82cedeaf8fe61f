#!lua
-- admit: call as many as are due by the room's rate and cap, lowest place first.
--
-- KEYS[1]   room      hash  settings and counters
-- KEYS[2]   line      zset  ticket -> place, not passed yet
-- KEYS[3]   blocks    hash  place/1024 -> how many are in line beyond the frontier
-- KEYS[4]   away      zset  ticket -> when it is abandoned, ms
-- KEYS[5]   passed    zset  ticket -> place, passed over while it was away
-- KEYS[6]   called    zset  ticket -> when its turn lapses, ms
-- KEYS[7]   sessions  zset  ticket -> when its admission expires, ms
-- ARGV[1]   now       ms    0: the store's clock
-- ARGV[2]   turn_ms   ms    how long a called visitor has to come
-- ARGV[3]   most      int   called by one run, at most
-- ARGV[4]   passes    int   passed over by one run, at most
-- ARGV[5]   news      str   the channel
-- returns   {"unseeded"} | {"ticked", epoch, version, frontier, called, waiting, at_once(0|1), now}
-- repeats   calls nobody more: what was due has been called, by whichever gateway came first
-- lives     called until the turn lapses; passed over until abandoned
-- cost      O(n log m) for n called or passed over in a line of m; publishes when anybody was, and once a second as a beat
local room, line, blocks, away, passed, called, sessions = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now, turn_ms, most, passes, news = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
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
now, turn_ms, most, passes = clock(whole(now, 'now')), whole(turn_ms, 'turn_ms'), whole(most, 'most'), whole(passes, 'passes')
kind(room, 'hash') kind(line, 'zset') kind(blocks, 'hash') kind(away, 'zset') kind(passed, 'zset')
kind(called, 'zset') kind(sessions, 'zset')
local names = { 'epoch', 'version', 'frontier', 'rate', 'cap', 'paused', 'opens_at', 'closes_at', 'shut_until', 'stocked', 'stock_known', 'free',
  'credit', 'credit_at', 'called_total', 'beat_at' }
local fields, r = redis.call('HMGET', room, unpack(names)), {}
if not fields[1] then return { 'unseeded' } end
for i, name in ipairs(names) do r[name] = whole(fields[i] or '0', room .. ' ' .. name) end

local credit, credit_at, open = accrue(r, now)
local inside = redis.call('ZCOUNT', called, '(' .. say(now), '+inf') + redis.call('ZCOUNT', sessions, '(' .. say(now), '+inf')
local due = 0
if open then
  due = math.min(most, math.floor(credit / 1000000))
  if r.cap > 0 then due = math.min(due, math.max(0, r.cap - inside)) end
end

-- Look first: who is next, who of them is here, and what that does to the counts. Nobody is called in vain: whoever is away is passed over at
-- no cost to the others, and comes back to its own place, which is then behind the frontier and next.
local to_called, to_passed, late, removed = {}, {}, {}, {}
local seen, highest = 0, r.frontier
local calls, passed_over = 0, 0
while calls < due and passed_over < passes do
  local size = math.min(500, due - calls + 50)
  local next = redis.call('ZRANGE', line, seen, seen + size - 1, 'WITHSCORES')
  if #next == 0 then break end
  local ids = {}
  for i = 1, #next, 2 do ids[#ids + 1] = next[i] end
  local gone_away = redis.call('ZMSCORE', away, unpack(ids))
  for i, ticket in ipairs(ids) do
    if calls >= due or passed_over >= passes then break end
    local place = tonumber(next[i * 2])
    seen = seen + 1
    if gone_away[i] then
      passed_over = passed_over + 1
      to_passed[#to_passed + 1] = say(place)
      to_passed[#to_passed + 1] = ticket
    else
      calls = calls + 1
      to_called[#to_called + 1] = say(now + turn_ms)
      to_called[#to_called + 1] = ticket
      if place <= r.frontier then late[#late + 1] = ticket end
    end
    if place > r.frontier then
      local block = say(math.floor(place / 1024))
      removed[block] = (removed[block] or 0) + 1
      highest = math.max(highest, place)
    end
  end
end
local counts, emptied = {}, {}
for block, less in pairs(removed) do
  local left = whole(redis.call('HGET', blocks, block) or '0', blocks .. ' ' .. block) - less
  if left > 0 then
    counts[#counts + 1] = block
    counts[#counts + 1] = say(left)
  else
    emptied[#emptied + 1] = block
  end
end

local function write(command, key, list)
  for from = 1, #list, 1000 do redis.call(command, key, unpack(list, from, math.min(from + 999, #list))) end
end
if seen > 0 then redis.call('ZREMRANGEBYRANK', line, 0, seen - 1) end
write('ZADD', called, to_called)
write('ZADD', passed, to_passed)
write('HSET', blocks, counts)
write('HDEL', blocks, emptied)
credit = credit - calls * 1000000
-- The beat shows every gateway that its subscription lives; a clock that went back must not silence it.
local beat = seen > 0 or now - r.beat_at >= 1000 or r.beat_at > now
redis.call('HSET', room, 'credit', say(credit), 'credit_at', say(credit_at), 'frontier', say(highest),
  'called_total', say(r.called_total + calls), 'beat_at', say(beat and now or r.beat_at))
if beat then
  local word = 'frontier ' .. say(r.epoch) .. ' ' .. say(highest)
  local from = 1
  repeat
    local part = table.concat(late, ' ', from, math.min(from + 499, #late))
    redis.call('PUBLISH', news, part == '' and word or word .. ' ' .. part)
    from = from + 500
  until from > #late
end
local waiting = redis.call('ZCARD', line)
local at_once = waiting == 0 and open and credit >= 1000000 and (r.cap == 0 or inside + calls < r.cap)
  and (r.closes_at == 0 or now < r.closes_at)
return { 'ticked', say(r.epoch), say(r.version), say(highest), say(calls), say(waiting), at_once and '1' or '0', say(now) }
