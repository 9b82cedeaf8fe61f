"""Clients that wait: processes of their own, each with thousands of streams, which note when an event came."""

import base64
import multiprocessing
import os
import random
import re
import select
import socket
import ssl
import time
import traceback

RETRY = re.compile(rb"retry: ?(\d+)")


def literal(name, value):
    """A header field of HTTP/2, written out."""
    length = bytes([len(value)]) if len(value) < 127 else b"\x7f" + number(len(value) - 127)
    return b"\x00" + bytes([len(name)]) + name + length + value


def number(value):
    out = b""
    while value >= 128:
        out += bytes([value % 128 | 128])
        value //= 128
    return out + bytes([value])


def frame(kind, flags, stream, body):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def connect(index, port):
    sock = socket.socket()
    sock.bind((f"127.{10 + index // 62500 % 200}.{1 + index // 250 % 250}.{1 + index % 250}", 0))
    sock.settimeout(30)
    sock.connect(("127.0.0.1", port))
    return sock


def head(sock):
    got = b""
    while b"\r\n\r\n" not in got:
        some = sock.recv(65536)
        if not some:
            raise OSError(f"closed after {got[:200]!r}")
        got += some
    return got


def cookies(answer):
    lines = [line.split(b":", 1)[1].split(b";")[0].strip() for line in answer.split(b"\r\n") if line.lower().startswith(b"set-cookie")]
    return b"; ".join(lines)


class Client:
    """One that waits."""

    def __init__(self, index, spec):
        self.index, self.spec, self.cookie, self.retry = index, spec, b"", 2.0
        if spec["page"]:
            sock = connect(index, spec["port"])
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n")
            self.cookie = cookies(head(sock))
            sock.close()

    def open(self):
        """Opens the stream; what came with its head stays unread where it can."""
        spec, cookie = self.spec, self.cookie
        kind = spec["kind"]
        sock = connect(self.index, spec["tls"] if kind in ("tls", "h2") else spec["port"])
        if kind in ("tls", "h2"):
            sock = CONTEXTS[kind].wrap_socket(sock, server_hostname="localhost")
        if kind == "h2":
            fields = literal(b":method", b"GET") + literal(b":path", spec["path"]) + literal(b":scheme", b"https") + literal(b":authority", b"localhost")
            fields += literal(b"accept", b"text/event-stream") + (literal(b"cookie", cookie) if cookie else b"")
            sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, fields))
            first = self.until_headers(sock)
            sock.sendall(frame(4, 1, 0, b""))
        else:
            fields = b"Host: localhost\r\n" + (b"Cookie: " + cookie + b"\r\n" if cookie else b"")
            if kind == "ws":
                key = base64.b64encode(os.urandom(16))
                fields += b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n"
            else:
                fields += b"Accept: text/event-stream\r\n"
            sock.sendall(b"GET " + spec["path"] + b" HTTP/1.1\r\n" + fields + b"\r\n")
            first = head(sock)
            status = first.split(b"\r\n", 1)[0]
            if b" 200 " not in status and b" 101 " not in status:
                raise OSError(f"{kind}: {status!r}")
            new = cookies(first.split(b"\r\n\r\n", 1)[0])
            if new:
                self.cookie = new
        self.hear(first)
        sock.setblocking(False)
        self.sock = sock
        return sock

    @staticmethod
    def until_headers(sock):
        got = b""
        while True:
            some = sock.recv(65536)
            if not some:
                raise OSError("closed")
            got += some
            at = 0
            while len(got) - at >= 9:
                length, kind = int.from_bytes(got[at : at + 3], "big"), got[at + 3]
                if len(got) - at < 9 + length:
                    break
                if kind == 1:
                    return got
                if kind in (3, 7):
                    raise OSError(f"h2: frame {kind}")
                at += 9 + length

    def hear(self, data):
        found = RETRY.search(data)
        if found:
            self.retry = int(found[1]) / 1000


CONTEXTS = {}
for _kind in ("tls", "h2"):
    CONTEXTS[_kind] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    CONTEXTS[_kind].check_hostname, CONTEXTS[_kind].verify_mode = False, ssl.CERT_NONE
CONTEXTS["h2"].set_alpn_protocols(["h2"])


class Process:
    """What runs in a process of a herd: reads events, and does what it is told in between."""

    def __init__(self, pipe, number):
        self.pipe, self.number = pipe, number
        self.poll = select.epoll()
        self.poll.register(pipe.fileno(), select.EPOLLIN)
        self.clients, self.back, self.mark = {}, [], None
        self.came_back, self.gap, self.lost, self.since = [], 0.0, 0, {}

    def run(self):
        while True:
            wait = 0.2
            if self.back:
                wait = min(wait, max(0, self.back[0][0] - time.monotonic()))
            for fd, _ in self.poll.poll(wait):
                if fd == self.pipe.fileno():
                    order, argument = self.pipe.recv()
                    if order == "end":
                        return
                    self.pipe.send(getattr(self, order)(argument))
                else:
                    self.read(fd)
            now = time.monotonic()
            while self.back and self.back[0][0] <= now:
                self.come_back(self.back.pop(0)[1])

    def open(self, argument):
        spec, count, first = argument
        for index in range(first, first + count):
            client = Client(index, spec)
            sock = client.open()
            self.clients[sock.fileno()] = client
            self.poll.register(sock.fileno(), select.EPOLLIN)
        return len(self.clients)

    def read(self, fd):
        client = self.clients.get(fd)
        if not client:
            return
        data = b""
        try:
            while True:
                some = client.sock.recv(65536)
                if not some:
                    return self.cut(fd)
                data += some
                if len(some) < 65536 and not isinstance(client.sock, ssl.SSLSocket):
                    break
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            return self.cut(fd)
        now = time.monotonic()
        if self.since is not None:
            self.gap = max(self.gap, now - self.since.get(fd, now))
            self.since[fd] = now
        if self.mark and self.mark in data:
            self.first = self.first or now
            self.last, self.told = now, self.told + 1
        if b"retry" in data:
            client.hear(data)
        if client.spec["kind"] == "ws" and b"\x89\x00" in data:
            client.sock.send(b"\x8a\x80\x00\x00\x00\x00")

    def cut(self, fd):
        client = self.clients.pop(fd)
        self.poll.unregister(fd)
        client.sock.close()
        self.since and self.since.pop(fd, None)
        self.lost += 1
        self.back.append((time.monotonic() + client.retry, client))
        self.back.sort(key=lambda one: one[0])

    def come_back(self, client):
        self.came_back.append(time.monotonic())
        try:
            sock = client.open()
        except OSError:
            # A browser tries again after as long.
            self.back.append((time.monotonic() + client.retry * random.uniform(1, 1.5), client))
            self.back.sort(key=lambda one: one[0])
            return
        self.clients[sock.fileno()] = client
        self.poll.register(sock.fileno(), select.EPOLLIN)

    def expect(self, mark):
        self.mark, self.first, self.last, self.told = mark, None, None, 0

    def told_all(self, _):
        return self.told, self.first, self.last

    def watch_gaps(self, _):
        self.gap, self.since, self.came_back, self.lost = 0.0, {}, [], 0

    def gaps(self, _):
        now = time.monotonic()
        still = max((now - since for since in self.since.values()), default=0)
        return max(self.gap, still)

    def returns(self, _):
        return self.came_back, self.lost, len(self.clients), len(self.back)

    def tickets(self, _):
        return [client.cookie for client in self.clients.values()]


def begin(pipe, number):
    try:
        Process(pipe, number).run()
    except (KeyboardInterrupt, EOFError):
        pass
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Herd:
    """Streams over several processes."""

    def __init__(self, processes):
        self.pipes, self.processes = [], []
        for number in range(processes):
            mine, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(target=begin, args=(theirs, number), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def tell(self, order, arguments):
        asked = list(zip(self.pipes, arguments))
        for pipe, argument in asked:
            pipe.send((order, argument))
        return [pipe.recv() for pipe, _ in asked]

    def all(self, order, argument=None):
        return self.tell(order, [argument] * len(self.pipes))

    def open(self, server, kind, count, first):
        """So many streams to one server (or to each process's own), numbered from `first`."""
        servers = server if isinstance(server, list) else [server] * len(self.pipes)
        share = [count * (number + 1) // len(self.pipes) - count * number // len(self.pipes) for number in range(len(self.pipes))]
        arguments, at = [], first
        for one, mine in zip(servers, share):
            path = one.socket_path if kind == "ws" else one.events_path
            spec = {"port": one.port, "tls": one.tls, "kind": kind, "path": path.encode(), "page": path.startswith("/.waitgate")}
            arguments.append((spec, mine, at))
            at += mine
        return sum(self.tell("open", arguments))

    def announced(self, announce, mark, count, limit=10):
        """Seconds from `announce` to the first and the last stream that hears it, and how many heard it."""
        self.all("expect", mark.encode())
        start = time.monotonic()
        announce(mark)
        while True:
            told = self.all("told_all")
            total = sum(one[0] for one in told)
            if total >= count or time.monotonic() > start + limit:
                break
            time.sleep(0.05)
        firsts, lasts = [one[1] for one in told if one[1]], [one[2] for one in told if one[2]]
        return (min(firsts, default=start) - start, max(lasts, default=start) - start, total)

    def end(self):
        for pipe in self.pipes:
            pipe.send(("end", None))
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
