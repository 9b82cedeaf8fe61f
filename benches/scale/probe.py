"""Asks for the page on new connections, one after the other, until it is told to stop; then says how many ms each took."""

import signal
import socket
import sys
import time

GOING = True


def stop(*_):
    global GOING
    GOING = False


signal.signal(signal.SIGTERM, stop)
times = []
while GOING:
    start = time.perf_counter()
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nConnection: close\r\n\r\n")
        while sock.recv(65536):
            pass
    times.append((time.perf_counter() - start) * 1000)
    time.sleep(0.002)
print("\n".join(f"{one:.3f}" for one in times))
