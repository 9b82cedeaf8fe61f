"""The kernel's part of a fan-out: one loop that sends 230 bytes to so many sockets whose other ends are read by another process. Says µs of CPU each."""

import os
import select
import socket
import statistics
import sys
import time

count = int(sys.argv[1])
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(4096)
port = listener.getsockname()[1]
child = os.fork()
if child == 0:
    listener.close()
    poll, mine = select.epoll(), {}
    for index in range(count):
        sock = socket.socket()
        sock.bind((f"127.9.{1 + index // 250}.{1 + index % 250}", 0))
        sock.connect(("127.0.0.1", port))
        mine[sock.fileno()] = sock
        poll.register(sock.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if not mine[fd].recv(65536):
                os._exit(0)
theirs = []
for _ in range(count):
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs.append(sock)
sends = [sock.send for sock in theirs]
word = b"x" * 230
runs = []
for _ in range(7):
    time.sleep(0.5)
    before = time.process_time()
    for send in sends:
        send(word)
    runs.append((time.process_time() - before) / count * 1e6)
print(statistics.median(runs))
for sock in theirs:
    sock.close()
os.waitpid(child, 0)
