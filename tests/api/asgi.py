"""One request to the application through a connection of the server, without a socket."""

from __future__ import annotations

import asyncio

from app.main import Application
from app.server.write_batch import flush
from app.settings import Settings
from tests.server.connections import configured, connect, until


def ask(app: Application, method: str, path: str, *fields: tuple[bytes, bytes]) -> tuple[int, dict[str, str]]:
    """Status and header fields of the answer to a request without a body."""

    async def answer() -> bytes:
        connection, transport = connect(app)
        lines = [f"{method} {path} HTTP/1.1".encode(), b"host: localhost", *(b"%b: %b" % field for field in fields)]
        connection.data_received(b"\r\n".join((*lines, b"", b"")))
        await until(lambda: connection.cycle.response_complete)
        flush()
        connection.connection_lost(None)
        return transport.written

    with configured(Settings()):
        written = asyncio.run(answer())
    status, *found = written.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in found)
