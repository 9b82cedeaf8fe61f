"""What it costs to have many waiting, in interleaved runs beside nchan and beside nginx with Lua and Redis.

CPU is the servers' own, from the operating system's accounting. Where a peer is named, A B A B … are measured in turns and the median is told.
"""

import argparse
import base64
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import plot
import rig
from herd import Herd, connect, head
from rig import LuaRedis, Nchan, Redis, Waitgate

HERE = Path(__file__).resolve().parent
NAMES = ["memory", "fanout", "idle", "joins", "cores", "positions", "storm"]
KINDS = {"sse": "SSE", "ws": "WebSocket", "tls": "SSE over TLS", "h2": "SSE over HTTP/2 and TLS"}


class Bench:
    def __init__(self, options, folder):
        self.options, self.root = options, Path(folder)
        self.goals, self.rows, self.growth, self.number = [], [], {}, 0
        self.program = str(Path(options.program).resolve())

    # --- what every measurement needs

    def folder(self):
        self.number += 1
        folder = self.root / str(self.number)
        folder.mkdir()
        return folder

    def small(self, full, quick):
        return quick if self.options.quick else full

    def goal(self, name, value, limit, least=False):
        good = value >= limit if least else value <= limit
        self.goals.append(f"goal {name} {value:.2f} {limit:g} {'ok' if good else 'missed'}")

    def row(self, what, value):
        self.rows.append((what, value))
        print(f"  {what}: {value}", flush=True)

    def grows(self, name, at, value):
        self.growth.setdefault(name, []).append((at, value))

    # --- the measurements

    def memory(self):
        """KiB of the server for each stream: just connected, and after ten events."""
        sizes = self.small([2000, 6000, 18000], [500, 1000])
        for kind in KINDS:
            measured = {}
            for size in sizes:
                for _ in range(self.small(3 if size == 2000 else 1, 1)):
                    for name in ("waitgate", "nchan"):
                        just, after = self.memory_of(name, kind, size)
                        measured.setdefault((name, size), []).append((just, after))
            for size in sizes:
                ours, theirs = (self.middle(measured[name, size]) for name in ("waitgate", "nchan"))
                self.row(
                    f"{KINDS[kind]}, {size:,} streams, KiB each, just connected / after ten events",
                    f"{ours[0]:.2f} / {ours[1]:.2f} (nchan {theirs[0]:.2f} / {theirs[1]:.2f})",
                )
                self.grows(f"memory, {KINDS[kind]}, KiB a stream", size, ours[1])
                if kind in ("sse", "ws"):
                    self.goal(f"memory_{kind}_{size}_kib", max(ours), 4.0)
                else:
                    self.goal(f"memory_{kind}_{size}_of_nchan", max(ours[0] / theirs[0], ours[1] / theirs[1]), 0.6)
            first, last = (self.middle(measured["waitgate", size])[1] for size in (sizes[0], sizes[-1]))
            self.goal(f"memory_{kind}_growth", last / first, 1.15)

    @staticmethod
    def middle(pairs):
        return tuple(statistics.median(pair[side] for pair in pairs) for side in (0, 1))

    def memory_of(self, name, kind, size):
        folder = self.folder()
        redis = Redis(folder) if name == "waitgate" else None
        server = Waitgate(self.program, folder, redis) if redis else Nchan(folder)
        herd = Herd(2)
        try:
            herd.open(server, kind, 300, 0)  # what is there once for all is not counted
            time.sleep(1)
            before = server.rss_kib()
            herd.open(server, kind, size, 1000)
            time.sleep(1.5)
            just = (server.rss_kib() - before) / size
            for event in range(10):
                _, _, told = herd.announced(server.announce, f"event {event} of {kind}", size + 300)
                if told < size + 300:
                    raise SystemExit(f"{name}, {kind}: {told} of {size + 300} heard event {event}")
            time.sleep(0.5)
            return just, (server.rss_kib() - before) / size
        finally:
            herd.end()
            server.stop()
            redis and redis.stop()

    def fanout(self):
        """From a change in Redis to the first and the last stream, and the CPU it costs; new requests meanwhile."""
        size = self.small(18000, 2000)
        runs = {"waitgate": [], "nchan": [], "waitgate, one worker": []}
        waits = []
        for _ in range(self.small(3, 1)):
            for name in runs:
                folder = self.folder()
                redis = Redis(folder) if name != "nchan" else None
                server = Nchan(folder) if name == "nchan" else Waitgate(self.program, folder, redis, workers=1 if "one" in name else 2)
                herd = Herd(2)
                try:
                    herd.open(server, "sse", size, 0)
                    time.sleep(1.5)
                    for event in range(self.small(6, 2)):
                        time.sleep(1.2)
                        before = server.cpu_us()
                        first, last, told = herd.announced(server.announce, f"news {event}", size)
                        used = server.cpu_us() - before
                        if told < size:
                            raise SystemExit(f"{name}: {told} of {size} heard the news")
                        runs[name].append((first * 1000, last * 1000, used / size))
                    if name == "waitgate":
                        waits += self.asked_meanwhile(server, herd, size)
                finally:
                    herd.end()
                    server.stop()
                    redis and redis.stop()
        median = {name: [statistics.median(run[part] for run in of) for part in range(3)] for name, of in runs.items()}
        for name, (first, last, used) in median.items():
            self.row(f"fan-out to {size:,} streams, {name}", f"first after {first:.1f} ms, last after {last:.0f} ms, {used:.1f} µs of CPU a stream")
        self.grows("fan-out, ms to the last stream", size, median["waitgate"][1])
        floor = self.bare_sends(size)
        self.row("the same bytes by bare send() from one loop", f"{floor:.1f} µs of CPU a stream")
        p99 = sorted(waits)[len(waits) * 99 // 100]
        self.row("new requests meanwhile", f"p50 {statistics.median(waits):.1f} ms, p99 {p99:.1f} ms of {len(waits)}")
        self.goal("fanout_us_a_stream", median["waitgate"][2], 8)
        self.goal("fanout_of_nchan", median["waitgate"][2] / median["nchan"][2], 1.0)
        self.goal("fanout_of_bare_send", median["waitgate"][2] / floor, 1.5)
        self.goal("fanout_last_ms", median["waitgate"][1], 200)
        self.goal("fanout_new_requests_p99_ms", p99, 50)
        self.fanout_over_all()

    def asked_meanwhile(self, server, herd, size):
        """Pages asked for by somebody new, one after the other, while events go out."""
        probe = subprocess.Popen([sys.executable, str(HERE / "probe.py"), str(server.port)], stdout=subprocess.PIPE, text=True)
        for event in range(self.small(6, 3)):
            herd.announced(server.announce, f"meanwhile {event}", size)
        probe.send_signal(signal.SIGTERM)
        times = [float(line) for line in probe.stdout.read().split()]
        probe.wait()
        return times

    def bare_sends(self, size):
        """What the kernel takes for it here: one process that sends the same bytes to as many sockets."""
        herd_like = subprocess.run([sys.executable, str(HERE / "bare.py"), str(min(size, 9000))], capture_output=True, text=True, check=True)
        return float(herd_like.stdout)

    def fanout_over_all(self):
        """All that the machine can hold: six gateways on one Redis."""
        size, gateways = self.small(100000, 6000), 6
        folder = self.folder()
        redis = Redis(folder)
        servers = [Waitgate(self.program, folder, redis, name=f"waitgate-{number}") for number in range(gateways)]
        herd = Herd(gateways)
        try:
            herd.open(servers, "sse", size, 0)
            time.sleep(5)
            runs = []
            for event in range(self.small(5, 2)):
                time.sleep(2)
                first, last, told = herd.announced(servers[event % gateways].announce, f"to all {event}", size, limit=20)
                if told < size:
                    raise SystemExit(f"{told} of {size} heard the news")
                runs.append((first * 1000, last * 1000))
            first, last = (statistics.median(run[part] for run in runs) for part in (0, 1))
            self.row(f"fan-out to {size:,} streams of {gateways} gateways", f"first after {first:.1f} ms, last after {last:.0f} ms")
            self.grows("fan-out, ms to the last stream", size, last)
        finally:
            herd.end()
            for server in servers:
                server.stop()
            redis.stop()

    def idle(self):
        """What waiting alone costs Redis: commands and CPU a second."""
        seconds = self.small(20, 5)
        sizes = self.small([1000, 10000, 100000], [500, 2000])
        seen = []
        for size in sizes:
            seen.append((f"{size:,} streams", size, self.idle_of(size, 0, seconds)))
        queued = self.small(1000000, 50000)
        with_streams = self.small(10000, 1000)
        seen.append((f"{queued:,} queued, {with_streams:,} streams", queued, self.idle_of(with_streams, queued, seconds)))
        for label, at, (calls, cpu, costs) in seen:
            told = ", ".join(f"{name} {us:.0f} µs" for name, us in costs.items())
            self.row(f"waiting, {label}, six gateways: Redis", f"{calls:.1f} scripts and {cpu / 1000:.2f} ms of CPU a second; one run of {told}")
            self.grows("Redis, scripts a second", at, calls)
            self.grows("Redis, ms of CPU a second", at, cpu / 1000)
        calls = [one[2][0] for one in seen]
        self.goal("idle_scripts_growth", max(calls) / min(calls), 1.05)
        self.goal("idle_redis_cpu_percent_of_a_core", max(one[2][1] for one in seen) / 10000, 5)

    def idle_of(self, streams, queued, seconds):
        folder = self.folder()
        redis = Redis(folder)
        servers = [Waitgate(self.program, folder, redis, name=f"waitgate-{number}") for number in range(6)]
        herd = Herd(6)
        try:
            if queued:
                redis.fill(0, queued)
            herd.open(servers, "sse", streams, 0)
            time.sleep(8)
            scripts = {name: self.script_cost(redis, name) for name in ("admit", "measure")}
            redis.ask("CONFIG", "RESETSTAT")
            before, start = redis.cpu_us(), time.monotonic()
            time.sleep(seconds)
            used, length = redis.cpu_us() - before, time.monotonic() - start
            return redis.calls()["evalsha"][0] / length, used / length, scripts
        finally:
            herd.end()
            for server in servers:
                server.stop()
            redis.stop()

    @staticmethod
    def script_cost(redis, name):
        """µs of one run, of 200."""
        sha = redis.script(name)
        if name == "admit":
            keys = redis.keys("room", "line", "blocks", "away", "passed", "called", "sessions")
            arguments = [0, 120000, 5000, 1000, "nobody"]
        else:
            keys, arguments = redis.keys("room", "line", "blocks"), [1024]
        redis.ask("CONFIG", "RESETSTAT")
        for _ in range(200):
            redis.ask("EVALSHA", sha, len(keys), *keys, *arguments)
        count, us = redis.calls()["evalsha"]
        return us / count

    # --- joins

    def wrk(self, script, url, *arguments, connections=64, seconds=4, threads=1, core=None):
        command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s", "-s", str(HERE / script), url, "--", *map(str, arguments)]
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = re.search(r"(\d+) requests in ([\d.]+)(m?s|m)", out)
        other = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
        return int(found[1]), float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1]), int(other[1]) if other else 0

    def tickets(self, server, path, count, folder):
        file = folder / f"tickets-{server.name}"
        self.wrk("collect.lua", f"http://127.0.0.1:{server.port}{path}", file, count, seconds=count // 9000 + 3)
        got = Path(f"{file}.0")
        return got, sum(1 for _ in got.open())

    def joins(self):
        """One visitor, one place: CPU of gateway and Redis for each, and how many a second."""
        seconds = self.small(3, 1)
        each = self.small(130000, 40000)
        ours, theirs = [], []
        for turn in range(self.small(3, 1)):
            for peer in ("waitgate", "lua"):
                place = self.folder()
                redis = Redis(place)
                server = Waitgate(self.program, place, redis, workers=2) if peer == "waitgate" else LuaRedis(place, redis, workers=2)
                try:
                    page, path = ("/", "/.waitgate/42/status") if peer == "waitgate" else ("/token", "/join")
                    file, count = self.tickets(server, page, each, place)
                    line = redis.keys("line")[0] if peer == "waitgate" else "{lua}:line"
                    cpu, store = server.cpu_us(), redis.cpu_us()
                    start = time.monotonic()
                    _, _, wrong = self.wrk("join.lua", f"http://127.0.0.1:{server.port}{path}", file, 0, count, connections=256, seconds=seconds)
                    length = time.monotonic() - start
                    joined = int(redis.ask("ZCARD", line))
                    if wrong or joined == 0 or joined >= count:
                        raise SystemExit(f"{peer}: {joined} of {count} joined, {wrong} answers were wrong")
                    run = ((server.cpu_us() - cpu) / joined, (redis.cpu_us() - store) / joined, joined / length)
                    (ours if peer == "waitgate" else theirs).append(run)
                finally:
                    server.stop()
                    redis.stop()
        mine, peers = ([statistics.median(run[part] for run in runs) for part in range(3)] for runs in (ours, theirs))
        for name, of in (("waitgate", mine), ("nginx + Lua + Redis", peers)):
            self.row(f"a join, {name}", f"{of[0]:.1f} µs of CPU in front, {of[1]:.1f} µs in Redis; {of[2]:,.0f} a second with everything on two cores")
        self.goal("join_gateway_of_peer", mine[0] / peers[0], 0.5)
        self.goal("join_per_second_of_peer", mine[2] / peers[2], 3.0, least=True)
        self.join_in_redis()

    def join_in_redis(self):
        """Redis alone: a million joins in groups of 500."""
        redis = Redis(self.folder())
        try:
            redis.ask("HSET", redis.keys("room")[0], "epoch", 1, "last", 0, "frontier", 0, "rate", 0, "cap", 0, "paused", 1, "stocked", 0, "stock_known", 1, "free", 0)
            count = self.small(1000000, 100000)
            before = redis.cpu_us()
            redis.fill(0, count)
            used = (redis.cpu_us() - before) / count
            self.row(f"a join in Redis, {count:,} in groups of 500", f"{used:.2f} µs of CPU, sockets included")
            self.goal("join_redis_us", used, 3.0)
        finally:
            redis.stop()

    def cores(self):
        """How much two workers do of what one does, by the CPU each answer takes: load and Redis run on the same two cores."""
        for name in ("no", "join"):
            costs = {}
            for _ in range(self.small(3, 1)):
                for workers in (1, 2):
                    place = self.folder()
                    redis = Redis(place)
                    server = Waitgate(self.program, place, redis, workers=workers, stock=0 if name == "no" else None)
                    try:
                        seconds = self.small(3, 1)
                        if name == "no":
                            time.sleep(0.5)
                            cpu = server.cpu_us()
                            count, _, _ = self.wrk("no.lua", f"http://127.0.0.1:{server.port}/", connections=128, seconds=seconds)
                        else:
                            file, collected = self.tickets(server, "/", self.small(130000, 40000), place)
                            cpu = server.cpu_us()
                            self.wrk("join.lua", f"http://127.0.0.1:{server.port}/.waitgate/42/status", file, 0, collected, connections=256, seconds=seconds)
                            count = int(redis.ask("ZCARD", redis.keys("line")[0]))
                        costs.setdefault(workers, []).append((server.cpu_us() - cpu) / count)
                    finally:
                        server.stop()
                        redis.stop()
            one, two = (statistics.median(costs[workers]) for workers in (1, 2))
            self.row(f"two workers, {name}", f"{two:.1f} µs of CPU each, {one:.1f} with one: {2 * one / two:.2f} times as many before both cores are full")
            self.goal(f"two_workers_{name}", 2 * one / two, 1.8, least=True)

    # --- positions

    def positions(self):
        """The number shown beside the rank in Redis, with a million in line and 30 % gone at random."""
        queued, asked = self.small(1000000, 30000), self.small(3000, 600)
        folder = self.folder()
        redis = Redis(folder)
        server = Waitgate(self.program, folder, redis, workers=2)
        try:
            visitors = []
            for number in range(asked):
                redis.fill(number * queued // asked, (number + 1) * queued // asked - number * queued // asked)
                visitors.append(Visitor(server.port, number))
            time.sleep(2)
            shown = [[visitor.ahead()] for visitor in visitors]
            gone = random.Random(7).sample(range(queued), queued * 3 // 10)
            for part in range(5):
                redis.leave([f"bulk{number:018d}" for number in gone[part::5]])
                time.sleep(1.2)
                for told, visitor in zip(shown, visitors):
                    told.append(visitor.ahead())
            time.sleep(2)
            worse = sum(1 for told in shown if any(after > before for before, after in zip(told, told[1:])))
            errors = []
            for told, visitor in zip(shown, visitors):
                rank = int(redis.ask("ZRANK", redis.keys("line")[0], visitor.id))
                errors.append((rank, abs(visitor.ahead() - rank)))
            first = [error for rank, error in errors if rank < 700]
            edges = [1000, 10000, 100000, 1000000]
            parts = []
            for low, high in zip([0, *edges], edges):
                some = sorted(error for rank, error in errors if low <= rank < high)
                if some:
                    parts.append(f"{low:,} to {high:,} ahead: p99 {some[len(some) * 99 // 100]}, most {some[-1]}")
            self.row(f"positions, {queued:,} in line, 30 % gone at random, difference to the rank", "; ".join(parts))
            self.row("positions that got worse meanwhile", f"{worse} of {asked}")
            self.goal("position_error_in_first_block", max(first, default=0), 0)
            self.goal("position_error_most", max(error for _, error in errors), 1024)
            self.goal("positions_worse", worse, 0)
        finally:
            server.stop()
            redis.stop()

    # --- a storm

    def storm(self):
        """Half the gateways die at once; their streams come back, those of the others notice nothing."""
        size, others = self.small(50000, 3000), self.small(6000, 500)
        folder = self.folder()
        redis = Redis(folder)
        dying = [Waitgate(self.program, folder, redis, name=f"dies-{number}") for number in range(3)]
        living = Waitgate(self.program, folder, redis, name="lives")
        herd, calm = Herd(3), Herd(1)
        try:
            herd.open(dying, "sse", size, 0)
            calm.open(living, "sse", others, 900000)
            time.sleep(3)
            line = redis.keys("line")[0]
            before = redis.ask("ZRANGE", line, 0, -1, "WITHSCORES")
            herd.all("watch_gaps"), calm.all("watch_gaps")
            talking = subprocess.Popen([sys.executable, str(HERE / "talk.py"), str(living.ops)])
            time.sleep(2)
            cut = time.monotonic()
            again = []
            for server in dying:
                server.stop(signal.SIGKILL)
            for server in dying:
                again.append(Waitgate(self.program, folder, redis, name=server.name, port=server.port))
            limit = time.monotonic() + 60
            while time.monotonic() < limit:
                time.sleep(0.5)
                back = herd.all("returns")
                if sum(one[2] for one in back) >= size:
                    break
            talking.terminate()
            talking.wait()
            whole = time.monotonic() - cut
            times = sorted(at - cut for one in back for at in one[0])
            most = max(sum(1 for at in times if start / 10 <= at < (start + 1) / 10) for start in range(int(whole * 10) + 1))
            gap = max(calm.all("gaps"))
            after = redis.ask("ZRANGE", line, 0, -1, "WITHSCORES")
            lost = sum(one[1] for one in back)
            self.row(f"{size:,} streams cut at once ({lost:,} noticed)", f"all back after {whole:.1f} s; at most {100 * most / size:.1f} % of them came within 100 ms")
            self.row(f"the longest silence of {others:,} streams elsewhere, told twice a second", f"{gap:.2f} s")
            self.row("places that changed", "none" if before == after else "some")
            self.goal("storm_percent_in_100_ms", 100 * most / size, 10)
            self.goal("storm_gap_elsewhere_s", gap, 2)
            self.goal("storm_places_changed", 0 if before == after else 1, 0)
            self.goal("storm_back", sum(one[2] for one in back) / size, 1, least=True)
        finally:
            herd.end()
            calm.end()

    def run(self):
        for name in NAMES:
            if self.options.only and name not in self.options.only:
                continue
            start = time.monotonic()
            print(f"\n{name}: {getattr(self, name).__doc__}", flush=True)
            try:
                getattr(self, name)()
            finally:
                rig.stop_all()
            print(f"  ({time.monotonic() - start:.0f} s)", flush=True)
        if not self.options.quick and not self.options.only:
            plot.write(rig.ROOT / "docs" / "scale.svg", self.growth)
        print("\n| | |\n|---|---|")
        for what, value in self.rows:
            print(f"| {what} | {value} |")
        print()
        for goal in self.goals:
            print(goal)


class Visitor:
    """Somebody real in a line of many: the ticket is the gateway's, the number the one it shows."""

    def __init__(self, port, number):
        self.sock = connect(number, port)
        self.cookie = b""
        self.ask(b"/", b"text/html")
        if self.ahead() is None:
            time.sleep(0.01)
        ticket = next(cookie for cookie in self.cookie.split(b"; ") if b"wgt" in cookie).split(b"=", 1)[1]
        claims = ticket.split(b".")[1]
        self.id = json.loads(base64.urlsafe_b64decode(claims + b"=" * (-len(claims) % 4)))["i"]

    def ask(self, path, accept):
        cookie = b"Cookie: " + self.cookie + b"\r\n" if self.cookie else b""
        self.sock.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nAccept: " + accept + b"\r\n" + cookie + b"\r\n")
        got = head(self.sock)
        top, body = got.split(b"\r\n\r\n", 1)
        length = int(re.search(rb"content-length: (\d+)", top, re.I)[1])
        while len(body) < length:
            body += self.sock.recv(65536)
        new = re.search(rb"set-cookie: ([^;\r]+)", top, re.I)
        if new:
            self.cookie = new[1]
        return body

    def ahead(self):
        """The number shown; asked for again until the line has been counted."""
        for _ in range(300):
            view = json.loads(self.ask(b"/.waitgate/42/status", b"application/json"))
            if view.get("ahead") is not None:
                return view["ahead"]
            time.sleep(0.02)
        raise SystemExit(f"no number for a visitor: {view}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the gateway")
    parser.add_argument("--quick", action="store_true", help="small crowds and one round")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {' '.join(NAMES)}")
    options = parser.parse_args()
    unknown = set(options.only or []) - set(NAMES)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="waitgate-scale") as folder:
        try:
            Bench(options, folder).run()
        finally:
            rig.stop_all()


if __name__ == "__main__":
    main()
