-- Loads a page without a cookie, over and over, and writes down each cookie it is given.
local number, most = 0, 0
function setup(thread) thread:set("number", number) number = number + 1 end
function init(args) file, most, count = io.open(args[1] .. "." .. number, "w"), tonumber(args[2]), 0 end
function request() return wrk.format("GET", nil, { Host = "localhost", Accept = "text/html" }) end
function response(status, headers)
  local cookie = headers["Set-Cookie"] or headers["set-cookie"]
  if cookie and count < most then
    file:write(cookie:match("^[^;]+"), "\n")
    count = count + 1
    if count == most then file:close() wrk.thread:stop() end
  end
end
