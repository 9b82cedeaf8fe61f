#!lua flags=no-writes
-- measure: what positions are worked out from.
--
-- KEYS[1]   room    hash  settings and counters
-- KEYS[2]   line    zset  ticket -> place, not passed yet
-- KEYS[3]   blocks  hash  place/1024 -> how many are in line beyond the frontier
-- ARGV[1]   most    int   places of the first block, at most
-- returns   {"unseeded"} | {"measured", epoch, frontier, last, number of blocks, block and count of each in any order, then the places beyond
--           the frontier in the first block, ascending}
-- repeats   writes nothing
-- lives     writes nothing
-- cost      O(b + f) for b blocks and f places in the first: about 1,000 and 1,024 for a line of a million
local room, line, blocks = KEYS[1], KEYS[2], KEYS[3]
local most = ARGV[1]
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
most = whole(most, 'most')
kind(room, 'hash') kind(line, 'zset') kind(blocks, 'hash')
local r = redis.call('HMGET', room, 'epoch', 'frontier', 'last')
if not r[1] then return { 'unseeded' } end
local frontier = whole(r[2] or '0', room .. ' frontier')
local flat = redis.call('HGETALL', blocks)
local size = #flat
local answer = { 'measured', say(whole(r[1], room .. ' epoch')), say(frontier), say(whole(r[3] or '0', room .. ' last')), say(size / 2) }
local least = MOST
for i = 1, size, 2 do
  local name, count = flat[i], flat[i + 1]
  local block, live = tonumber(name), tonumber(count)
  -- A thousand of these: only what looks wrong is looked at closely.
  if not block or block < 0 or block % 1 ~= 0 then whole(name, blocks .. ' block') end
  if not live or live < 0 or live % 1 ~= 0 then whole(count, blocks .. ' ' .. name) end
  if block < least then least = block end
  answer[i + 5], answer[i + 6] = name, count
end
if size > 0 then
  local start = least * 1024
  local from = math.max(start, frontier + 1)
  local places = redis.call('ZRANGE', line, say(from), say(start + 1023), 'BYSCORE', 'LIMIT', 0, say(most), 'WITHSCORES')
  -- As the server writes scores (7.6e+12 with some): a thousand conversions here would cost everybody a millisecond.
  local before = #answer
  for i = 2, #places, 2 do answer[before + i / 2] = places[i] end
end
return answer
