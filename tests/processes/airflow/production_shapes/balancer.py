"""A load balancer for TCP: gives each connection to the next server in turn, or to another one where that is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from threading import Thread

from demo.processes import LOOPBACK, free_port

CHUNK_BYTES = 65536


class Balancer:
    """The balancer.

    Args:
        port: Where it listens, on the loopback address.

    Attributes:
        port: The same.
        server_ports: The ports of the servers, on the loopback address; more may come at any time.
        connections: How many connections each server was given, by its port.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.server_ports: list[int] = []
        self.connections: Counter[int] = Counter()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until one of its sides closes it."""
        try:
            turn = self.connections.total()
            ports = self.server_ports
            for port in [ports[(turn + place) % len(ports)] for place in range(len(ports))]:
                with contextlib.suppress(OSError):
                    from_server, to_server = await asyncio.open_connection(LOOPBACK, port)
                    self.connections[port] += 1
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_pass_on(reader, to_server))
                        both.create_task(_pass_on(from_server, writer))
                    return
        finally:
            writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # A server that was killed resets its connections.
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def balancing() -> Iterator[Balancer]:
    """Run a balancer in a thread until the block ends.

    Yields:
        The balancer, listening, without servers.
    """
    balancer = Balancer(free_port())
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(balancer.handle, LOOPBACK, balancer.port))
    thread = Thread(target=loop.run_forever, name="balancer")
    thread.start()
    try:
        yield balancer
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.close()
