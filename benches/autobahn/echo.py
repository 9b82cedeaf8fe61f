"""A WebSocket server that says everything back: Autobahn|Python's own, with compression where the client offers it. Prints its port."""

import asyncio

from autobahn.asyncio.websocket import WebSocketServerFactory, WebSocketServerProtocol
from autobahn.websocket.compress import PerMessageDeflateOffer, PerMessageDeflateOfferAccept


class Echo(WebSocketServerProtocol):
    def onMessage(self, payload, is_binary):
        self.sendMessage(payload, is_binary)


def compression(offers):
    known = (offer for offer in offers if isinstance(offer, PerMessageDeflateOffer))
    return next((PerMessageDeflateOfferAccept(offer) for offer in known), None)


async def main():
    factory = WebSocketServerFactory()
    factory.protocol = Echo
    # A breach is answered with a close frame, as the specification wants, not by dropping the connection.
    factory.setProtocolOptions(failByDrop=False, perMessageCompressionAccept=compression)
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
