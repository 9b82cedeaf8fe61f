-- Asks once for each cookie of a file, from one of its lines on; then with the first ones again.
function init(args)
  requests, at = {}, 0
  local skip, line = tonumber(args[2]), 0
  for cookie in io.lines(args[1]) do
    line = line + 1
    if line > skip then requests[#requests + 1] = wrk.format("GET", nil, { Host = "localhost", Cookie = cookie, Accept = "application/json" }) end
    if #requests == tonumber(args[3]) then break end
  end
end
function request() at = at % #requests + 1 return requests[at] end
