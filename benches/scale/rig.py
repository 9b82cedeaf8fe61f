"""What is measured: Redis, waitgate, nginx with nchan, nginx with Lua. Each has a port or socket of its own, and is stopped by its process id."""

import json
import os
import signal
import socket
import subprocess
import time
import http.client
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTED = []


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def stop_all():
    while STARTED:
        STARTED[-1].stop()


def certificate(folder):
    """A certificate for TLS, made once."""
    chain, key = Path(folder) / "chain.pem", Path(folder) / "key.pem"
    if not chain.exists():
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost".split()
        subprocess.run([*command, "-keyout", key, "-out", chain], check=True, capture_output=True)
    return chain, key


class Program:
    """A program and the processes it starts."""

    def __init__(self, name, command, log):
        self.name, self.log = name, Path(log)
        with open(log, "ab") as words:
            self.process = subprocess.Popen(command, stdout=words, stderr=words)
        STARTED.append(self)

    def wait_for(self, what):
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended at once\n{self.log.read_text(errors='replace')[-2000:]}")
            try:
                what()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit(f"{self.name} does not answer\n{self.log.read_text(errors='replace')[-2000:]}")

    def pids(self):
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(child) for child in children.read_text().split()]
        return found

    def cpu_us(self):
        total = 0
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    total += int(task.read_text().split()[0])
                except (OSError, IndexError):
                    pass
        return total / 1000

    def rss_kib(self):
        total = 0
        for pid in self.pids():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS"):
                    total += int(line.split()[1])
        return total

    def stop(self, how=signal.SIGTERM):
        STARTED.remove(self)
        self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Redis(Program):
    """A Redis on a socket, and a connection to it."""

    def __init__(self, folder):
        self.path = f"{folder}/redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no"]
        super().__init__("redis", command, f"{folder}/redis.log")
        self.wait_for(self.connect)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)
        self.file = self.sock.makefile("rb")

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.sock.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def read(self):
        line = self.file.readline()
        kind, value = line[:1], line[1:-2]
        if kind == b"$":
            return None if value == b"-1" else self.file.read(int(value) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(value))]
        if kind == b"-":
            raise SystemExit(f"redis: {value.decode()}")
        return value

    def ask(self, *words):
        self.send(*words)
        return self.read()

    def calls(self):
        """Calls and µs of each command since the last CONFIG RESETSTAT."""
        found = {}
        for line in self.ask("INFO", "commandstats").decode().split("\r\n"):
            if line.startswith("cmdstat_"):
                name, fields = line[len("cmdstat_") :].split(":")
                fields = dict(field.split("=") for field in fields.split(","))
                found[name] = (int(fields["calls"]), int(fields["usec"]))
        return found

    def script(self, name):
        return self.ask("SCRIPT", "LOAD", (ROOT / "lua" / f"{name}.lua").read_text()).decode()

    def keys(self, *names):
        return [f"{{wg:42}}:{name}" for name in names]

    def fill(self, first, count, group=500, in_flight=1):
        """So many tickets join by the gateway's own script; a gateway has one call in flight."""
        sha = self.script("join")
        keys = self.keys("room", "line", "blocks", "away", "passed", "called", "sessions", "gone", "fates")
        waiting = 0
        for start in range(first, first + count, group):
            asked = []
            for number in range(start, min(start + group, first + count)):
                asked += [f"bulk{number:018d}", "0", "join"]
            self.send("EVALSHA", sha, len(keys), *keys, 0, 600000, *asked)
            waiting += 1
            if waiting == in_flight:
                self.read()
                waiting -= 1
        for _ in range(waiting):
            self.read()

    def leave(self, tickets, group=500):
        """These leave by the gateway's own script."""
        sha = self.script("depart")
        keys = self.keys("room", "line", "blocks", "away", "passed", "called", "sessions", "gone", "fates")
        for start in range(0, len(tickets), group):
            changes = []
            for ticket in tickets[start : start + group]:
                changes += ["leave", ticket, "0"]
            self.ask("EVALSHA", sha, len(keys), *keys, 0, 600000, 600000, "nobody", *changes)


LIMITS = "\n".join(f'{name} = {{ rate = "1000000/s", burst = 1000000 }}' for name in ("address", "visitor", "waiting"))


class Waitgate(Program):
    """A gateway on a Redis of the bench."""

    def __init__(self, program, folder, redis, name="waitgate", workers=1, rate="0/s", stock=None, port=None, core=None):
        self.folder = Path(folder) / name
        self.folder.mkdir(exist_ok=True)
        chain, key = certificate(folder)
        self.port, self.tls, self.ops = port or free_port(), free_port(), free_port()
        file = self.folder / "waitgate.toml"
        file.write_text(
            f"""
[server]
listen = "127.0.0.1:{self.port}"
workers = {workers}
max_connections_per_address = 50000
[tls]
listen = "127.0.0.1:{self.tls}"
certificates = [{{ chain = "{chain}", key = "{key}" }}]
[ops]
listen = "127.0.0.1:{self.ops}"
[store]
url = "redis+unix://{redis.path}"
data_dir = "{folder}"
[limits]
{LIMITS}
[cookies]
secure = false
[log]
filter = "warn"
[rooms.42]
paths = ["/"]
upstream = "http://127.0.0.1:1"
on_store_loss = "hold"
rate = "{rate}"
max_waiters = 1000000
{f"stock = {stock}" if stock is not None else ""}
"""
        )
        command = [program, "serve", "--config", str(file)]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        super().__init__(name, command, self.folder / "log")
        self.wait_for(lambda: self.operate("GET", "/readyz"))

    def operate(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.ops, timeout=20)
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status != 200:
            raise OSError(f"{method} {path}: {answer.status} {text[:200]}")
        return text

    def announce(self, text):
        """A frontier change would reach those it calls; a message reaches all, and costs the same."""
        self.operate("PATCH", "/v1/rooms/42", {"message": text})

    events_path = "/.waitgate/42/events"
    socket_path = "/.waitgate/42/ws"


class Nchan(Program):
    """nginx with nchan: one channel for all, the same bytes for each."""

    def __init__(self, folder):
        home = Path(folder) / "nchan"
        home.mkdir(exist_ok=True)
        chain, key = certificate(folder)
        self.port, self.tls = free_port(), free_port()
        temporary = " ".join(f"{kind}_temp_path {home}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        file = home / "nginx.conf"
        file.write_text(
            f"""
load_module /usr/lib/nginx/modules/ngx_nchan_module.so;
daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {home}/pid; error_log {home}/error.log crit;
{"user root;" if os.getuid() == 0 else ""}
events {{ worker_connections 19900; }}
http {{ access_log off; {temporary} nchan_shared_memory_size 256m;
  server {{
    listen 127.0.0.1:{self.port} backlog=4096; listen 127.0.0.1:{self.tls} ssl http2 backlog=4096;
    ssl_certificate {chain}; ssl_certificate_key {key};
    location = /publish {{ nchan_publisher; nchan_channel_id room; nchan_message_buffer_length 1; }}
    location = /listen {{ nchan_subscriber; nchan_channel_id room; nchan_subscriber_first_message newest; }}
  }} }}
"""
        )
        nginx = "/usr/sbin/nginx" if os.path.exists("/usr/sbin/nginx") else "nginx"
        super().__init__("nchan", [nginx, "-c", str(file), "-e", f"{home}/error.log"], home / "log")
        self.wait_for(lambda: socket.create_connection(("127.0.0.1", self.port)).close())

    def rss_kib(self):
        return sum(rss for pid, rss in each_rss(self.pids()) if pid != self.process.pid)

    def announce(self, text):
        view = {"state": "waiting", "ahead": 12345, "wait_low_s": 100, "wait_high_s": 200, "updated_at_ms": 1796126400000, "message": text, "poll_after_s": 12}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/publish", json.dumps(view))
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status >= 300:
            raise SystemExit(f"nchan: {answer.status}")

    events_path = "/listen"
    socket_path = "/listen"


def each_rss(pids):
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                yield pid, int(line.split()[1])


class LuaRedis(Program):
    """What shops build today: nginx, a signed token, and one script for each visitor."""

    JOIN = "local p = redis.call('ZSCORE', KEYS[2], ARGV[1]) if not p then p = redis.call('INCR', KEYS[1]) redis.call('ZADD', KEYS[2], p, ARGV[1]) end return {p, redis.call('ZRANK', KEYS[2], ARGV[1])}"

    def __init__(self, folder, redis, workers=1, core=None):
        home = Path(folder) / "lua"
        home.mkdir(exist_ok=True)
        self.port = free_port()
        sha = redis.ask("SCRIPT", "LOAD", self.JOIN).decode()
        temporary = " ".join(f"{kind}_temp_path {home}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        file = home / "nginx.conf"
        file.write_text(
            f"""
load_module /usr/lib/nginx/modules/ndk_http_module.so; load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
daemon off; worker_processes {workers}; worker_rlimit_nofile 20000; pid {home}/pid; error_log {home}/error.log crit;
{"user root;" if os.getuid() == 0 else ""}
events {{ worker_connections 8192; }}
http {{ access_log off; keepalive_requests 1000000000; {temporary}
  server {{ listen 127.0.0.1:{self.port} backlog=4096 reuseport;
    location = /token {{ content_by_lua_block {{
      local id = ngx.encode_base64(ngx.hmac_sha1("x", ngx.var.request_id), true)
      ngx.header["Set-Cookie"] = "ticket=" .. id .. "." .. ngx.encode_base64(ngx.hmac_sha1("0123456789abcdef0123456789abcdef", id), true)
      ngx.print("ok") }} }}
    location = /join {{ content_by_lua_block {{
      local id, signature = (ngx.var.cookie_ticket or ""):match("^([^.]+)%.([^.]+)$")
      if not id or ngx.encode_base64(ngx.hmac_sha1("0123456789abcdef0123456789abcdef", id), true) ~= signature then return ngx.exit(403) end
      local redis = require("nginx.redis"):new()
      redis:set_timeout(2000)
      if not redis:connect("unix:{redis.path}") then return ngx.exit(503) end
      local told = redis:evalsha("{sha}", 2, "{{lua}}:last", "{{lua}}:line", id)
      if not told then return ngx.exit(503) end
      redis:set_keepalive(60000, 256)
      ngx.header["Content-Type"] = "application/json"
      ngx.header["Cache-Control"] = "no-store"
      ngx.print('{{"state":"waiting","ahead":' .. told[2] .. ',"poll_after_s":12}}') }} }}
  }} }}
"""
        )
        nginx = "/usr/sbin/nginx" if os.path.exists("/usr/sbin/nginx") else "nginx"
        command = [nginx, "-c", str(file), "-e", f"{home}/error.log"]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        super().__init__("nginx+lua+redis", command, home / "log")
        self.wait_for(lambda: socket.create_connection(("127.0.0.1", self.port)).close())
