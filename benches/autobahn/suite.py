"""Runs the suite, twice, and counts. `run` says what for."""

import argparse
import asyncio
import collections
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import kosoku
from relay import relay

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Large messages, one by one and by the thousand, plain and compressed.
LARGE = ["9.*", "12.*", "13.*"]
# What the waiting socket can be asked: no case that passes only with an echo.
PINGS = ["2.*"]
BREACHES = ["3.*", "4.*", "5.1", "5.2", "5.9", "5.10", "5.11", "5.12", "5.13", "5.14", "5.15", "5.16", "5.17", "5.18", "6.3.*", "6.4.*"]
GOODBYES = ["7.1.2", "7.1.3", "7.1.4", "7.1.5", "7.1.6", "7.3.*", "7.5.*", "7.7.*", "7.9.*", "7.13.*"]
SETTINGS = """
server.listen = "127.0.0.1:0"
ops.listen = "127.0.0.1:0"
server.fallback = "http://127.0.0.1:{echo}"
store.data_dir = "{folder}"
cookies.secure = false
log.format = "json"
limits.waiting = {{ rate = "10000/s", burst = 10000 }}
limits.visitor = {{ rate = "10000/s", burst = 10000 }}
[rooms.42]
paths = ["/sale"]
upstream = "http://127.0.0.1:{echo}"
rate = 0
on_store_loss = "hold"
"""


def start(command, **more):
    return subprocess.Popen([str(word) for word in command], text=True, **more)


def serve(program, folder, echo):
    """The gateway, and its public port, as its log tells it."""
    file = folder / "waitgate.toml"
    file.write_text(SETTINGS.format(echo=echo, folder=folder / "data"))
    log = folder / "waitgate.log"
    gateway = start([program, "serve", "--config", file], stderr=subprocess.PIPE)
    said = []
    for line in gateway.stderr:
        said.append(line)
        spoken = json.loads(line) if line.startswith("{") else {}
        if "public" in spoken:
            # From here on nobody reads along: what it says more goes into a file.
            drain = start(["cat"], stdin=gateway.stderr, stdout=log.open("w"))
            return gateway, drain, int(spoken["public"].rsplit(":", 1)[1])
    raise SystemExit("waitgate did not start:\n" + "".join(said))


def ticket(port):
    """Stands in line as a browser does, and answers the cookie."""
    cookie = ""
    for path in ["/sale", "/.waitgate/42/status"]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": "text/html", "Cookie": cookie})
        with urllib.request.urlopen(request) as answer:
            cookie = (answer.headers["Set-Cookie"] or cookie).split(";")[0]
    return cookie


async def run(name, url, cases, leave_out):
    """Runs these cases, and answers how many failed."""
    try:
        results = await kosoku.run_fuzzingclient(url, cases, leave_out, concurrency=4)
    except kosoku.FailureError as failure:
        results = failure.results
        print(failure)
    verdicts = collections.Counter(result.behavior.value for result in results)
    closes = collections.Counter(result.behavior_close.value for result in results)
    bad = {"FAILED", "ERROR"}, {"FAILED", "WRONG CODE", "UNCLEAN", "FAILED BY CLIENT"}
    failed = sum(result.behavior.value in bad[0] or result.behavior_close.value in bad[1] for result in results)
    if not results:
        raise SystemExit(f"{name}: nothing was run")
    say = lambda counted: ", ".join(f"{count} {word}" for word, count in sorted(counted.items()))
    print(f"{name}: passed {len(results) - failed} failed {failed} (messages: {say(verdicts)}; goodbyes: {say(closes)})", flush=True)
    return failed


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--program", type=Path, default=ROOT / "target/release/waitgate")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--direct", action="store_true")
    asked = parser.parse_args()
    leave_out = LARGE if asked.quick else None
    echo = start([sys.executable, HERE / "echo.py"], stdout=subprocess.PIPE, stderr=(asked.folder / "echo.log").open("w"))
    started = [echo]
    try:
        echo_port = int(echo.stdout.readline())
        if asked.direct:
            return await run("echo server alone", f"ws://127.0.0.1:{echo_port}/chat", None, leave_out)
        gateway, drain, port = serve(asked.program, asked.folder, echo_port)
        started += [gateway, drain]
        failed = await run("echo server behind waitgate", f"ws://127.0.0.1:{port}/chat", None, leave_out)
        between = await asyncio.start_server(relay(port, ticket(port)), "127.0.0.1", 0)
        url = f"ws://127.0.0.1:{between.sockets[0].getsockname()[1]}/.waitgate/42/ws"
        return failed + await run("waiting socket", url, PINGS + BREACHES + GOODBYES, None)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)


sys.exit(1 if asyncio.run(main()) else 0)
