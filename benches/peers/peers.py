"""waitgate beside nginx, HAProxy and nginx with Lua: CPU per request, requests a second, latency.

Servers run on one core, load and backend on the other. A B C, A B C … are measured in turns, and what is quoted is the median of the ratios of one turn:
the machine's own speed falls out of it. CPU is the server's own, from the operating system's accounting.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import servers
from servers import LOAD_CORE



class Measured:
    """One short run: requests answered, CPU µs of the server for each, answers a second."""

    def __init__(self, requests, cpu_us, per_second, failed):
        self.requests, self.cpu_us, self.per_second, self.failed = requests, cpu_us, per_second, failed


def load(command):
    done = subprocess.run(["taskset", "-c", LOAD_CORE, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def wrk(server, port, path, connections, seconds, cookie=None, close=False, bodies=None):
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
    if cookie:
        command += ["-H", f"Cookie: {cookie}"]
    if close:
        command += ["-H", "Connection: close"]
    before = server.cpu_ns()
    out = load([*command, f"http://127.0.0.1:{port}{path}"])
    used = server.cpu_ns() - before
    requests = int(re.search(r"(\d+) requests in", out)[1])
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])
    other = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", out)
    broken = sum(int(number) for number in broken.groups()) if broken else 0
    other = int(other[1]) if other else 0
    wrong = broken + (requests - other if bodies is None else other)
    return Measured(requests, used / 1000 / max(requests, 1), rate, wrong)


def h2load(server, port, path, connections, streams, seconds):
    before = server.cpu_ns()
    out = load(["h2load", f"-c{connections}", f"-m{streams}", "-t1", f"-D{seconds}", f"http://127.0.0.1:{port}{path}"])
    used = server.cpu_ns() - before
    # With a duration h2load counts what began and ended inside of it; statuses are of all answers.
    statuses = re.search(r"status codes: (\d+) 2xx, (\d+) 3xx, (\d+) 4xx, (\d+) 5xx", out)
    answered = sum(int(number) for number in statuses.groups())
    rate = float(re.search(r"([\d.]+) req/s", out)[1])
    return Measured(answered, used / 1000 / max(answered, 1), rate, answered - int(statuses[3]))


def latency(server, port, path, rate, seconds, folder, cookie=None):
    """Time to the end of the answer in µs at a fixed rate (p50, p99): 16 connections, none of which waits for its own last answer to be asked again."""
    log = Path(folder) / "latency.log"
    log.unlink(missing_ok=True)
    command = ["h2load", "--h1", "-c16", "-t1", f"--rps={rate / 16:.1f}", f"-D{seconds}", f"--log-file={log}"]
    if cookie:
        command += ["-H", f"cookie: {cookie}"]
    load([*command, f"http://127.0.0.1:{port}{path}"])
    times = sorted(int(line.split("\t")[2]) for line in log.read_text().splitlines() if line)
    if len(times) < 100:
        raise SystemExit(f"only {len(times)} answers to measure latency by")
    return times[len(times) // 2], times[len(times) * 99 // 100]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.backend = servers.backend(folder)
        port = self.backend.port
        self.nginx = servers.nginx_peer(folder, port)
        self.haproxy = servers.haproxy_peer(folder, port)
        self.lua = servers.lua_peer(folder, port)
        self.waitgate = servers.waitgate_peer(folder, port)
        self.bare = servers.bare_peer(options.bare)
        self.peers = [self.nginx, self.waitgate, self.haproxy, self.lua]
        self.goals = []

    def wanted(self, name):
        return not self.options.only or name in self.options.only

    def compare(self, name, measure, peers, goals):
        """Measures the peers in turns, prints medians, and judges `goals`: {peer: most}, waitgate's CPU per request as a ratio to that peer's."""
        if not self.wanted(name):
            return
        runs = {peer.name: [] for peer in peers}
        for turn in range(self.options.pairs):
            order = peers if turn % 2 == 0 else peers[::-1]
            for peer in order:
                measured = measure(peer)
                if measured.failed > max(5, measured.requests // 1000):
                    raise SystemExit(f"{name}: {peer.name} gave {measured.failed} wrong answers of {measured.requests}")
                runs[peer.name].append(measured)
        print(f"\n{name}")
        base = runs["nginx"]
        for peer in peers:
            mine = runs[peer.name]
            ratios = [one.cpu_us / other.cpu_us for one, other in zip(mine, base)]
            rate = statistics.median(one.per_second for one in mine)
            print(f"  {peer.name:12} {statistics.median(one.cpu_us for one in mine):7.1f} µs CPU/request   {spread(ratios)} × nginx   {rate:9.0f} /s")
        for peer, most in goals.items():
            ratios = [one.cpu_us / other.cpu_us for one, other in zip(runs["waitgate"], runs[peer])]
            self.judge(f"{name}_over_{peer.replace('+', '_')}", statistics.median(ratios), most)
        sys.stdout.flush()

    def judge(self, name, value, most):
        slack = 1.15 if self.options.quick else 1.05
        self.goals.append(f"goal {name} {value:.2f} {most} {'ok' if value <= most * slack else 'missed'}")

    def latencies(self, name, path, rate):
        """Added latency at a fixed rate well below what the slowest can do."""
        if not self.wanted(name):
            return
        runs = {"direct": [], "nginx": [], "haproxy": [], "waitgate": []}
        for _ in range(max(3, self.options.pairs // 3)):
            for peer in [self.backend, self.nginx, self.haproxy, self.waitgate]:
                key = "direct" if peer is self.backend else peer.name
                runs[key].append(latency(peer, peer.port, path, rate, 2, self.folder, getattr(peer, "cookie", None)))
        print(f"\n{name}, at {rate} requests a second")
        direct = runs["direct"]
        added = {}
        for peer, mine in runs.items():
            p50 = statistics.median(one[0] for one in mine)
            p99 = statistics.median(one[1] for one in mine)
            added[peer] = p99 - statistics.median(one[1] for one in direct)
            print(f"  {peer:12} p50 {p50:6.0f} µs   p99 {p99:6.0f} µs")
        self.judge(f"{name}_added_p99_over_haproxy", max(added["waitgate"], 1) / max(added["haproxy"], 1), 1.0)
        sys.stdout.flush()

    def run(self):
        seconds = self.options.seconds
        port_of = lambda peer, http2=False: peer.h2 if http2 else peer.port
        everybody = self.peers
        noes = [*self.peers, self.bare]
        for connections, limit in ((64, 1.0), (512, 1.0)):
            self.compare(f"no_h1_{connections}", lambda peer: wrk(peer, peer.port, "/sale", connections, seconds), noes, {"nginx": limit})
        self.compare("no_new_connections", lambda peer: wrk(peer, peer.port, "/sale", 64, seconds, close=True), noes, {"nginx": 1.0})
        self.compare("no_h2_10", lambda peer: h2load(peer, port_of(peer, True), "/sale", 64, 10, seconds), noes, {"nginx": 0.35})
        self.compare("no_h2_1", lambda peer: h2load(peer, port_of(peer, True), "/sale", 64, 1, seconds), noes, {"nginx": 0.75})
        three = [self.nginx, self.waitgate, self.haproxy]

        def limited(peer):
            server = peer.limited if peer is self.waitgate else peer
            path = "/sale" if peer is self.waitgate else "/limited"
            return wrk(server, server.port, path, 64, seconds)

        self.compare("limited_h1_64", limited, three, {"nginx": 1.0})
        for size, connections in (("1k", 64), ("1k", 512), ("64k", 64), ("64k", 512)):
            goals = {"nginx": 1.0, "nginx+lua": 0.6} if size == "1k" else {"nginx": 1.0}

            def proxied(peer):
                return wrk(peer, peer.port, f"/shop/{size}", connections, seconds, cookie=getattr(peer, "cookie", None), bodies=size)

            self.compare(f"admitted_{size}_{connections}", proxied, everybody, goals)
        self.latencies("latency_1k", "/shop/1k", 3000)
        print()
        for goal in self.goals:
            print(goal)


def spread(values):
    return f"{statistics.median(values):5.2f} [{min(values):.2f}–{max(values):.2f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bare", help="the program of bare hyper, as benches/build says")
    parser.add_argument("--quick", action="store_true", help="three pairs: under four minutes, judged with 15 %% instead of 5 %%")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", type=lambda text: text.split(","))
    options = parser.parse_args()
    options.pairs = options.pairs or (3 if options.quick else 15)
    options.seconds = int(options.seconds or (1 if options.quick else 2))
    with tempfile.TemporaryDirectory(prefix="waitgate-peers") as folder:
        try:
            Bench(options, folder).run()
        finally:
            servers.stop_all()


if __name__ == "__main__":
    os.nice(0)
    main()
