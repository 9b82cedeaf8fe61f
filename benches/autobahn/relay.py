"""Between the suite and the waiting socket: adds the ticket to the handshake, and takes the gateway's own messages out of what comes back.

Nothing else is touched: every byte of the suite arrives as it was sent, and every ping, pong and close of the gateway arrives at the suite.
"""

import asyncio

TEXT = 1


async def pipe(reader, writer):
    """Passes bytes on, and the end of them."""
    try:
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()


async def frames(reader, writer):
    """Passes frames of the gateway on, but for its texts. They are never masked, and its own are whole."""
    try:
        while True:
            head = await reader.readexactly(2)
            opcode, length = head[0] & 0x0F, head[1] & 0x7F
            more = await reader.readexactly({126: 2, 127: 8}.get(length, 0))
            payload = await reader.readexactly(int.from_bytes(more, "big") if more else length)
            if opcode != TEXT:
                writer.write(head + more + payload)
                await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    writer.close()


def relay(gateway, cookie):
    """Handles a connection of the suite."""

    async def handle(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", gateway)
        inner_writer.write(head[:-2] + f"Cookie: {cookie}\r\n\r\n".encode())
        answer = await inner_reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await asyncio.gather(pipe(reader, inner_writer), frames(inner_reader, writer))
        inner_writer.close()

    return handle
