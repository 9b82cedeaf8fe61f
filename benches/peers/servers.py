"""The servers that are compared: each started on one core, on a port of its own, and stopped by its process id."""

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

SERVER_CORE = "0"
LOAD_CORE = "1"
ROOT = Path(__file__).resolve().parents[2]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


STARTED = []


def stop_all():
    """Ends what was started, whatever happened."""
    while STARTED:
        STARTED.pop().stop()


class Server:
    """A program on one core. `cpu_ns` is what the operating system says that it used, with all its processes and threads."""

    def __init__(self, name, command, port, core=SERVER_CORE, log=None):
        self.name, self.port = name, port
        self.log = open(log, "wb") if log else subprocess.DEVNULL
        self.process = subprocess.Popen(["taskset", "-c", core, *command], stdout=self.log, stderr=self.log)
        STARTED.append(self)
        self.wait()

    def wait(self):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if self.process.poll() is not None:
                said = Path(self.log.name).read_text(errors="replace") if self.log != subprocess.DEVNULL else ""
                raise SystemExit(f"{self.name} ended at once with {self.process.returncode}\n{said}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"{self.name} does not listen on {self.port}")

    def processes(self):
        """This program's own processes; a private store is somebody else's work and not counted here."""
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split() if not is_redis(int(child))]
        return found

    def cpu_ns(self):
        total = 0
        for pid in self.processes():
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    total += int(task.read_text().split()[0])
                except (OSError, IndexError):
                    pass
        return total

    def rss_kib(self):
        total = 0
        for pid in self.processes():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    total += int(line.split()[1])
        return total

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def is_redis(pid):
    try:
        return "redis" in Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return False


NGINX = """
{modules}
daemon off; master_process off; worker_processes 1; worker_rlimit_nofile 20000;
error_log {folder}/error.log crit; pid {folder}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 300s; tcp_nodelay on; server_tokens off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {http}
}}
"""


def nginx(name, folder, http, port, modules="", core=SERVER_CORE):
    folder = Path(folder) / name
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, http=http, modules=modules))
    program = "/usr/sbin/nginx" if os.path.exists("/usr/sbin/nginx") else "nginx"
    return Server(name, [program, "-c", str(file), "-e", str(folder / "error.log")], port, core)


def backend(folder):
    """A fast backend beside the load: two files of 1 KiB and 64 KiB, kept open by nginx."""
    files = Path(folder) / "files"
    files.mkdir()
    (files / "1k").write_bytes(b"x" * 1024)
    (files / "64k").write_bytes(b"x" * 65536)
    port = free_port()
    http = f"""
  open_file_cache max=10; sendfile on; tcp_nopush on;
  server {{
    listen 127.0.0.1:{port} backlog=4096; root {files};
    location /shop/ {{ alias {files}/; }}
  }}"""
    return nginx("backend", folder, http, port, core=LOAD_CORE)


def nginx_peer(folder, backend_port):
    """`return 409`, limit_req and proxy_pass, as a shop would write them."""
    port = free_port()
    h2 = free_port()
    http = f"""
  limit_req_zone $binary_remote_addr zone=address:10m rate=1r/m;
  upstream shop {{ server 127.0.0.1:{backend_port}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; listen 127.0.0.1:{h2} http2 backlog=4096;
    location /sale {{ add_header Cache-Control no-store always; default_type application/problem+json; return 409 '{PROBLEM}'; }}
    location /limited {{ limit_req zone=address; limit_req_status 429; alias {folder}/files/1k; }}
    location /shop/ {{ proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; proxy_buffers 8 16k; proxy_buffer_size 16k; }}
  }}"""
    server = nginx("nginx", folder, http, port)
    server.h2 = h2
    return server


PROBLEM = '{"type":"about:blank","title":"Sold out","status":409,"code":"sold_out","detail":"All units are sold."}'


def lua_peer(folder, backend_port):
    """What shops build today: nginx and a few lines of Lua that check an HMAC token before proxying."""
    port = free_port()
    h2 = free_port()
    modules = "load_module /usr/lib/nginx/modules/ndk_http_module.so; load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;"
    check = """
        local token = ngx.var.cookie_pass
        if not token then return ngx.exit(403) end
        local payload, signature = token:match("^([^.]+)%.([^.]+)$")
        if not payload or ngx.encode_base64(ngx.hmac_sha1("0123456789abcdef0123456789abcdef", payload), true) ~= signature then return ngx.exit(403) end
        local ends = tonumber(payload:match(":(%d+)$"))
        if not ends or ends < ngx.time() then return ngx.exit(403) end
    """
    http = f"""
  lua_shared_dict flags 1m;
  init_by_lua_block {{ ngx.shared.flags:set("sold_out", true) }}
  upstream shop {{ server 127.0.0.1:{backend_port}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; listen 127.0.0.1:{h2} http2 backlog=4096;
    location /sale {{ content_by_lua_block {{
      if ngx.shared.flags:get("sold_out") then
        ngx.status = 409; ngx.header["Cache-Control"] = "no-store"; ngx.header["Content-Type"] = "application/problem+json"
        ngx.print('{PROBLEM}') return ngx.exit(409)
      end }} }}
    location /token {{ content_by_lua_block {{
      local payload = "visitor:" .. (ngx.time() + 3600)
      ngx.print(payload .. "." .. ngx.encode_base64(ngx.hmac_sha1("0123456789abcdef0123456789abcdef", payload), true)) }} }}
    location /shop/ {{ access_by_lua_block {{ {check} }}
      proxy_pass http://shop; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; proxy_buffers 8 16k; proxy_buffer_size 16k; }}
  }}"""
    server = nginx("nginx+lua", folder, http, port, modules)
    server.h2 = h2
    ask = http_client(port)
    ask.request("GET", "/token")
    server.cookie = "pass=" + ask.getresponse().read().decode()
    ask.close()
    return server


def bare_peer(program):
    """hyper alone, giving the same answer: what a gateway built on it cannot be below."""
    port = free_port()
    server = Server("bare hyper", [program, str(port)], port)
    server.h2 = port
    return server


def haproxy_peer(folder, backend_port):
    port = free_port()
    h2 = free_port()
    file = Path(folder) / "haproxy.cfg"
    answer = "content-type application/problem+json lf-string '" + PROBLEM.replace('"', '\\"') + "' hdr Cache-Control no-store"
    file.write_text(f"""
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  timeout http-keep-alive 300s
  option http-keep-alive
  http-reuse always
frontend front
  bind 127.0.0.1:{port} backlog 4096
  bind 127.0.0.1:{h2} proto h2 backlog 4096
  stick-table type ip size 1m expire 60s store http_req_rate(60s)
  http-request track-sc0 src if {{ path_beg /limited }}
  http-request return status 409 content-type application/problem+json string '{PROBLEM.replace('"', chr(92) + '"')}' hdr Cache-Control no-store if {{ path_beg /sale }}
  http-request deny deny_status 429 if {{ path_beg /limited }} {{ sc_http_req_rate(0) gt 1 }}
  option forwardfor
  default_backend shop
backend shop
  server shop 127.0.0.1:{backend_port} pool-max-conn -1
""")
    server = Server("haproxy", ["haproxy", "-f", str(file), "-db"], port, log=Path(folder) / "haproxy.log")
    server.h2 = h2
    return server


def waitgate_peer(folder, backend_port):
    """One room that is sold out, one that anybody may enter, and one whose address limit is used up."""
    port, ops = free_port(), free_port()
    folder = Path(folder) / "waitgate"
    folder.mkdir()
    file = folder / "waitgate.toml"
    shared = f"""
[store]
data_dir = "{folder}/data"
[cookies]
secure = false
[server]
workers = 1
max_connections_per_address = 100000
"""
    generous = '{ rate = "1000000/s", burst = 1000000 }'
    room = f"""
upstream = "http://127.0.0.1:{backend_port}"
rate = "100000/s"
on_store_loss = "hold"
"""
    file.write_text(f"""{shared}
listen = "127.0.0.1:{port}"
[ops]
listen = "127.0.0.1:{ops}"
[upstream]
max_in_flight = 4096
[limits]
address = {generous}
visitor = {generous}
[rooms.sale]
paths = ["/sale"]
stock = 0
{room}
[rooms.shop]
paths = ["/shop"]
{room}
""")
    program = ROOT / "target/release/waitgate"
    server = Server("waitgate", [str(program), "serve", "--config", str(file)], port, log=folder / "log")
    server.h2 = port
    server.cookie = admission(port)
    move_store(server.process.pid)
    strict = folder / "limited.toml"
    limited, limited_ops = free_port(), free_port()
    strict.write_text(file.read_text().replace(str(port), str(limited)).replace(str(ops), str(limited_ops))
                      .replace(f"address = {generous}", 'address = { rate = "1/min", burst = 1 }').replace(f"{folder}/data", f"{folder}/data2"))
    server.limited = Server("waitgate (limit used up)", [str(program), "serve", "--config", str(strict)], limited, log=folder / "log2")
    until_limited(limited)
    move_store(server.limited.process.pid)
    return server


def until_limited(port):
    """Asks until the answer is the one that is to be measured: by then the store is there."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ask = http_client(port)
        ask.request("GET", "/sale")
        status = ask.getresponse().status
        ask.close()
        if status == 429:
            return
        time.sleep(0.1)
    raise SystemExit("the limit is never used up")


def move_store(pid):
    """The private store works beside the load, on the other core."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            if is_redis(int(child)):
                subprocess.run(["taskset", "-a", "-c", "-p", LOAD_CORE, child], stdout=subprocess.DEVNULL, check=True)


def http_client(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=10)


def admission(port):
    """The cookies of a visitor who was let in."""
    end = time.monotonic() + 20
    cookies = {}
    while time.monotonic() < end:
        ask = http_client(port)
        headers = {"Accept": "text/html"}
        if cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        ask.request("GET", "/shop/1k", headers=headers)
        answer = ask.getresponse()
        body = answer.read()
        for line in answer.headers.get_all("Set-Cookie") or []:
            name, value = line.split(";")[0].split("=", 1)
            cookies[name] = value
        ask.close()
        if answer.status == 200 and body == b"x" * 1024:
            return "; ".join(f"{name}={value}" for name, value in cookies.items())
        time.sleep(0.2)
    raise SystemExit(f"nobody is let in: {answer.status} {body[:200]!r}")
