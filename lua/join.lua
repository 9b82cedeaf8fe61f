#!lua
-- join: give each new ticket the next place, or admit it at once when nobody waits and the rate allows; a known ticket keeps its place.
--
-- KEYS[1]   room          hash  settings and counters
-- KEYS[2]   line          zset  ticket -> place, not passed yet
-- KEYS[3]   blocks        hash  place/1024 -> how many are in line beyond the frontier
-- KEYS[4]   away          zset  ticket -> when it is abandoned, ms
-- KEYS[5]   passed        zset  ticket -> place, passed over while it was away
-- KEYS[6]   called        zset  ticket -> when its turn lapses, ms
-- KEYS[7]   sessions      zset  ticket -> when its admission expires, ms
-- KEYS[8]   gone          zset  ticket -> when it is forgotten, ms
-- KEYS[9]   fates         hash  ticket -> left | lapsed | abandoned | ended
-- ARGV[1]   now           ms    0: the store's clock
-- ARGV[2]   admission_ms  ms    how long an admission lasts
-- ARGV[3..] asked         triples: ticket, the place it carries (0: none), at_once | join | again
-- returns   {"unseeded"} | {"joined", epoch, frontier, then one word per ticket: its place as a number when it waits (up to the frontier: it is
--           behind it, and next) | "called", a blank, until | "admitted", a blank, until | "gone", a blank, fate | "must_wait"}; "must_wait" for
--           at_once when there is a line, and for all that are new when the room has closed: nothing was written for them
-- repeats   the same standings: a lost reply gives nobody a second place
-- lives     in line until called, left or abandoned; a session until it expires
-- cost      O(n log m) for n tickets in a line of m
local room, line, blocks, away, passed, called, sessions, gone, fates =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, admission_ms = ARGV[1], ARGV[2]
local asked = {}
for i = 3, #ARGV do asked[i - 2] = ARGV[i] end
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
now, admission_ms = clock(whole(now, 'now')), whole(admission_ms, 'admission_ms')
-- Most of these are empty most of the time, and nothing needs to be looked for in them.
kind(room, 'hash')
local holds = { [line] = kind(line, 'zset'), [away] = kind(away, 'zset'), [passed] = kind(passed, 'zset'), [called] = kind(called, 'zset'),
  [sessions] = kind(sessions, 'zset'), [fates] = kind(fates, 'hash') }
kind(blocks, 'hash') kind(gone, 'zset')
local names = { 'epoch', 'last', 'frontier', 'rate', 'cap', 'paused', 'opens_at', 'closes_at', 'shut_until', 'stocked', 'stock_known', 'free',
  'credit', 'credit_at', 'joined_total', 'called_total' }
local fields, r = redis.call('HMGET', room, unpack(names)), {}
if not fields[1] then return { 'unseeded' } end
for i, name in ipairs(names) do r[name] = whole(fields[i] or '0', room .. ' ' .. name) end

-- Everything is read and decided first, and written after: an error must not leave half a batch.
local tickets, places, knocks, count = {}, {}, {}, 0
for i = 1, #asked, 3 do
  count = count + 1
  local place, knock = asked[i + 1], asked[i + 2]
  if knock ~= 'join' and knock ~= 'at_once' and knock ~= 'again' then refuse('BADWORD knock') end
  tickets[count], knocks[count] = asked[i], knock
  places[count] = place == '0' and 0 or whole(place, 'place')
end
local function lookup(command, key)
  local all = {}
  if not holds[key] then return all end
  for from = 1, count, 500 do
    local part = redis.call(command, key, unpack(tickets, from, math.min(from + 499, count)))
    if count <= 500 then return part end
    for i = 1, #part do all[from + i - 1] = part[i] end
  end
  return all
end
local session_of, turn_of, place_of = lookup('ZMSCORE', sessions), lookup('ZMSCORE', called), lookup('ZMSCORE', line)
local away_of, passed_of, fate_of = lookup('ZMSCORE', away), lookup('ZMSCORE', passed), lookup('HMGET', fates)

local credit, credit_at, open = accrue(r, now)
local closed = r.closes_at > 0 and now >= r.closes_at
local empty = not holds[line]
local inside = redis.call('ZCOUNT', called, '(' .. say(now), '+inf') + redis.call('ZCOUNT', sessions, '(' .. say(now), '+inf')
local until_ms = now + admission_ms
local to_line, in_line, to_sessions, back, unpassed, forgiven, added, seen = {}, 0, {}, {}, {}, {}, {}, {}
local moved = false

-- Places of a batch mostly follow each other, and writing a number is dear: all but its last digit is written once for ten.
local DIGITS = { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9' }
local tens, tens_word
local function write_place(place)
  local last = place % 10
  if place - last ~= tens then
    tens = place - last
    tens_word = say(tens / 10)
  end
  return tens_word .. DIGITS[last]
end
local frontier = r.frontier
local function stand_in_line(ticket, place)
  to_line[in_line + 1], to_line[in_line + 2] = write_place(place), ticket
  in_line, empty = in_line + 2, false
  if place > frontier then
    local block = (place - place % 1024) / 1024
    added[block] = (added[block] or 0) + 1
  end
  return place
end

local function newcomer(ticket, knock)
  if closed then return 'must_wait' end
  local at_once = empty and open and credit >= 1000000 and (r.cap == 0 or inside < r.cap)
  if knock == 'at_once' and not at_once then return 'must_wait' end
  if r.last >= MOST then refuse('BADNUMBER ' .. room .. ' last is used up') end
  r.last, r.joined_total, moved = r.last + 1, r.joined_total + 1, true
  if not at_once then return stand_in_line(ticket, r.last) end
  r.frontier, frontier, r.called_total, credit, inside = r.last, r.last, r.called_total + 1, credit - 1000000, inside + 1
  to_sessions[#to_sessions + 1] = until_ms
  to_sessions[#to_sessions + 1] = ticket
  return 'admitted' .. ' ' .. say(until_ms)
end

local function standing(i)
  local ticket, place, knock = tickets[i], places[i], knocks[i]
  -- What is over but not swept yet is over: an answer must not depend on when somebody sweeps.
  local session, turn, fate = session_of[i], turn_of[i], fate_of[i]
  session, turn = session and tonumber(session), turn and tonumber(turn)
  if session and session > now then return 'admitted' .. ' ' .. say(session) end
  if turn and turn > now then return 'called' .. ' ' .. say(turn) end
  if session then fate = 'ended' elseif turn then fate = 'lapsed' end
  if fate then
    if knock ~= 'again' or closed then return 'gone' .. ' ' .. fate end
    forgiven[#forgiven + 1] = ticket
    return newcomer(ticket, knock)
  end
  if away_of[i] then back[#back + 1] = ticket end
  if passed_of[i] then unpassed[#unpassed + 1] = ticket end
  if place_of[i] then return tonumber(place_of[i]) end
  -- Passed over while away, or unknown to a store that lost its memory: back to its own place.
  if passed_of[i] then return stand_in_line(ticket, tonumber(passed_of[i])) end
  if place > 0 then
    if place > r.last then r.last, moved = place, true end
    return stand_in_line(ticket, place)
  end
  return newcomer(ticket, knock)
end

local answer = { 'joined', say(r.epoch), '' }
for i = 1, count do
  local ticket = tickets[i]
  local stands = seen[ticket] or standing(i)
  -- Two tabs may ask for one ticket in one batch.
  if stands ~= 'must_wait' then seen[ticket] = stands end
  answer[i + 3] = stands
end
answer[3] = say(r.frontier)
local counts = {}
for block, more in pairs(added) do
  counts[#counts + 1] = say(block)
  counts[#counts + 1] = say(whole(redis.call('HGET', blocks, say(block)) or '0', blocks .. ' ' .. say(block)) + more)
end

local function write(command, key, list)
  for from = 1, #list, 1000 do redis.call(command, key, unpack(list, from, math.min(from + 999, #list))) end
end
write('ZREM', away, back)
write('ZREM', passed, unpassed)
for _, key in ipairs({ gone, called, sessions }) do write('ZREM', key, forgiven) end
write('HDEL', fates, forgiven)
write('ZADD', line, to_line)
write('ZADD', sessions, to_sessions)
write('HSET', blocks, counts)
if moved then
  redis.call('HSET', room, 'last', say(r.last), 'frontier', say(r.frontier), 'joined_total', say(r.joined_total),
    'called_total', say(r.called_total))
end
if #to_sessions > 0 then redis.call('HSET', room, 'credit', say(credit), 'credit_at', say(credit_at)) end
return answer
