"""Instructions per request, counted by callgrind: a run of few requests is taken from a run of many, so that starting and stopping fall out.

Only one thread is counted, the one that grows with the requests. The ticks of the line are on another.
"""

import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FEW, MANY = 200, 2200
# Instructions of our own steps, over bare hyper, per "sold out" on a connection that is kept.
NO_BOUND = 9_000
# Instructions of an admitted request, token checked and proxied, both connections kept, over bare hyper answering it.
FORWARD_BOUND = 60_000


def request(path, extra=""):
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: steps\r\nAccept: */*\r\n{extra}\r\n".encode()


SALE = request("/sale")


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def connect(port):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nothing listens on {port}")


def answer_of(sock, asked):
    """One request on a connection: the head and the body of its answer."""
    sock.sendall(asked)
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = sock.recv(65536)
        if not more:
            raise SystemExit("the connection ended")
        answer += more
    head, body = answer.split(b"\r\n\r\n", 1)
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    while len(body) < length:
        body += sock.recv(65536)
    return head, body


def status(sock, asked):
    return int(answer_of(sock, asked)[0].split()[1])


def run(command, port, requests, folder, ready):
    """Instructions by thread, and the files that say where they went. `ready` asks until what is measured can be asked, and says what that is."""
    out = Path(folder) / f"callgrind.{requests}"
    tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--separate-threads=yes", "--trace-children=no"]
    with open(Path(folder) / "log", "wb") as log:
        process = subprocess.Popen([*tool, *command], stdout=log, stderr=log)
        try:
            connect(port).close()
            asked, wanted = ready(port)
            sock = connect(port)
            for _ in range(requests):
                got = status(sock, asked)
                if got != wanted:
                    raise SystemExit(f"the answer is {got}, not {wanted}")
            sock.close()
        finally:
            process.terminate()
            process.wait(60)
    totals = {}
    for file in Path(folder).glob(f"callgrind.{requests}*"):
        for line in file.read_text().splitlines():
            if line.startswith(("summary:", "totals:")):
                totals[file.name.split("-")[-1]] = (int(line.split()[1]), file)
    return totals


def per_request(name, command_for, ready, show=False):
    with tempfile.TemporaryDirectory(prefix="waitgate-steps") as folder:
        counts = []
        for requests in (FEW, MANY):
            port = free_port()
            counts.append(run(command_for(port, folder), port, requests, folder, ready))
        few, many = counts
        growth = {thread: many[thread][0] - few.get(thread, (0,))[0] for thread in many}
        serving = max(growth, key=growth.get)
        if show:
            subprocess.run(["callgrind_annotate", "--auto=no", "--threshold=96", str(many[serving][1])], check=False)
    instructions = growth[serving] / (MANY - FEW)
    print(f"{name:24} {instructions:8.0f} instructions a request", flush=True)
    return instructions


def until(port, attempt):
    end = time.monotonic() + 90
    while time.monotonic() < end:
        with connect(port) as sock:
            found = attempt(sock)
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit("what is to be measured cannot be asked")


def sold_out(port):
    """The room is known a moment after the port is open."""
    return until(port, lambda sock: status(sock, SALE) == 409 and (SALE, 409))


def admitted(port):
    """Goes in, and asks again with the cookies of whoever was let in."""
    cookies = {}

    def attempt(sock):
        jar = "; ".join(f"{name}={value}" for name, value in cookies.items())
        head, _ = answer_of(sock, request("/shop/x", f"Accept: text/html\r\nCookie: {jar}\r\n"))
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "set-cookie":
                name, value = value.split(";")[0].split("=", 1)
                cookies[name] = value
        jar = "; ".join(f"{name}={value}" for name, value in cookies.items())
        asked = request("/shop/x", f"Cookie: {jar}\r\n")
        return status(sock, asked) == 200 and (asked, 200)

    return until(port, attempt)


def backend():
    """Answers 1 KiB to whatever comes, on connections that are kept."""
    listener = socket.create_server(("127.0.0.1", 0))
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1024\r\n\r\n" + b"x" * 1024

    def serve(sock):
        while sock.recv(65536):
            sock.sendall(answer)

    def accept():
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


BACKEND = backend()


def gateway(port, folder):
    file = Path(folder) / "waitgate.toml"
    quota = '{ rate = "1000000/s", burst = 1000000 }'
    file.write_text(f"""
[server]
listen = "127.0.0.1:{port}"
workers = 1
[cookies]
secure = false
[ops]
listen = "127.0.0.1:{free_port()}"
[store]
data_dir = "{folder}/data-{port}"
[limits]
address = {quota}
visitor = {quota}
[rooms.shop]
paths = ["/shop"]
upstream = "http://127.0.0.1:{BACKEND}"
rate = "100/s"
on_store_loss = "hold"
[rooms.sale]
paths = ["/sale"]
upstream = "http://127.0.0.1:1"
stock = 0
on_store_loss = "hold"
""")
    return [str(ROOT / "target/release/waitgate"), "serve", "--config", str(file)]


def main():
    bare_program, show = sys.argv[1], "--show" in sys.argv
    bare = per_request("bare hyper", lambda port, folder: [bare_program, str(port)], sold_out)
    bounds = [("no", sold_out, NO_BOUND), ("forward", admitted, FORWARD_BOUND)]
    goals = []
    for name, ready, bound in bounds:
        own = per_request(f"waitgate, {name}", gateway, ready, show) - bare
        goals.append((f"goal {name}_instructions_over_bare_hyper {own:.0f} {bound}", own <= bound))
    for line, met in goals:
        print(line, "ok" if met else "missed")
    sys.exit(not all(met for _, met in goals))


if __name__ == "__main__":
    main()
