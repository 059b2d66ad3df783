"""100 Continue: the answer to `Expect: 100-continue`, with which a client holds its body back until it is asked for it.

uvicorn's parser notes the field (`expect_100_continue`), and an exchange sends the answer once its body is wanted; a
request that is refused before then keeps its body. It also goes to clients that may have gone (see
`half_closed_connections`).
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from app.server.write_batch import flush

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ExpectingExchange(Protocol):
    """What `send_continue` uses of an `HttpExchange`."""

    transport: asyncio.Transport
    waiting_for_100_continue: bool


def send_continue(exchange: ExpectingExchange) -> None:
    """Have the client send its body; a client that did not ask for this answer drops it."""
    if not exchange.transport.is_closing():
        flush()
        exchange.transport.write(CONTINUE)
        exchange.waiting_for_100_continue = False
