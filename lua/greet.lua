#!lua
-- greet: a gateway says that it is here and what it goes by, and hears of the others. One that has been quiet is forgotten.
--
-- KEYS[1]   gateways  hash  gateway -> when it was here last, ms, a blank, and its words
-- ARGV[1]   now       ms    0: the store's clock
-- ARGV[2]   name      str   the gateway
-- ARGV[3]   words     str   what it goes by; empty: it leaves
-- ARGV[4]   quiet_ms  ms    who has been quiet for so long is forgotten
-- ARGV[5]   most      int   gateways kept at most; another one is heard but not written down
-- returns   {"greeted", now, then name, when it was here last and words of each}
-- repeats   writes the same again, with a later time
-- lives     until quiet_ms after the last greeting of whoever greets last
-- cost      O(n) for n gateways
local gateways = KEYS[1]
local now, name, words, quiet_ms, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
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
now, quiet_ms, most = clock(whole(now, 'now')), whole(quiet_ms, 'quiet_ms'), whole(most, 'most')
kind(gateways, 'hash')
local flat, answer, here = redis.call('HGETALL', gateways), { 'greeted', say(now) }, 0
for i = 1, #flat, 2 do
  local at, said = string.match(flat[i + 1], '^(%d+) (.*)$')
  if flat[i] == name or not at or tonumber(at) + quiet_ms <= now then
    redis.call('HDEL', gateways, flat[i])
  else
    here = here + 1
    answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = flat[i], at, said
  end
end
if words ~= '' then
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = name, say(now), words
  if here < most then redis.call('HSET', gateways, name, say(now) .. ' ' .. words) end
  redis.call('PEXPIRE', gateways, say(quiet_ms))
end
return answer
