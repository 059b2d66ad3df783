"""A server that searches its own memory: `python -m tests.security.searched_app FLAGS`.

GET /holders?text=TXET says how many texts that anything in the process still refers to contain TEXT, which is sent
backwards so that the question is not found.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.main import create_app
from app.server_from_settings import serve
from app.settings import Settings
from tests.http.faulty_app import add_route


def holders(text: str) -> int:
    """How many texts that something refers to contain `text`, written backwards."""
    wanted = text[::-1]
    gc.collect()
    gc.unfreeze()
    found = 0
    seen: set[int] = set()
    left: list[Any] = gc.get_objects()
    mine = {id(left), id(seen), id(wanted)}
    while left:
        one = left.pop()
        if id(one) in seen or id(one) in mine:
            continue
        seen.add(id(one))
        if isinstance(one, str):
            found += wanted in one
        elif isinstance(one, bytes | bytearray):
            found += wanted.encode() in one
        elif one is sys.modules["_asyncio"]:
            # Its referents are also objects that were freed, with some releases of 3.12: python/cpython#122695.
            left.append(vars(one))
        else:
            left.extend(gc.get_referents(one))
    gc.freeze()
    return found


async def send_holders(context: RequestContext) -> None:
    """Answer with the number of texts that contain the one of the query."""
    text = context.query.removeprefix(b"text=").decode()
    found = await asyncio.to_thread(holders, text)
    await context.send(200, JSON, b"%d" % found)


if __name__ == "__main__":
    settings = Settings(_cli_parse_args=sys.argv[1:])
    app = create_app(settings)
    add_route(app, "/holders", send_holders)
    serve(settings, app)
