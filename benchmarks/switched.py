"""The service with observability, limits and keys switched off, for `benchmarks.cost` to compare it with itself.

python -m benchmarks.switched on|off|turns FLAGS OF GATHERND SERVE

`off` is the same code with these parts replaced from outside by ones that do nothing: metrics and the count of requests
under way, API keys, Host and Origin, the memory budget, Server-Timing, request ids. Reading the clock for deadlines and
Server-Timing stays, and so does the check for slow clients, once a second. `on` replaces nothing. `turns` is off and on
by turns, and writes what it did after each. The service has no such switch, so that this one file replaces attributes
of it; a test holds that each replaced part is off.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, process_time
from typing import Any
from unittest.mock import patch

from app.api import asgi_request
from app.api.asgi_request import RequestContext
from app.main import Application, create_app
from app.server import request_header_cache
from app.server.slow_and_idle_clients import sweep
from app.server_from_settings import serve
from app.settings import Settings
from app.telemetry import request_id

TURNS_FILE = "GATHERND_COST_TURNS"
TURN_S = 0.1


class Uncounted:
    """Stands for the metrics on the way of a request; for all else there are the real ones."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self) -> int:
        """Nothing is counted."""
        return 0

    def count(self, exchange: RequestContext, code: str | None) -> None:
        """Nothing is counted."""


class Free:
    """A lease of a budget without end: one serves all requests."""

    __slots__ = ()

    def charge(self, size: int) -> None:
        """Everything fits."""

    def admit(self, size: int) -> None:
        """Everything fits."""

    def release(self) -> None:
        """Nothing is held."""


_FREE = Free()


def _free(_: object) -> Free:
    return _FREE


def shortest(_: RequestContext, content_type: bytes, size: int) -> bytes:
    """The header lines without Server-Timing and request id."""
    return b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, size)


def switch_off(app: Application, stack: ExitStack) -> None:
    """Replace what watches over requests by what does nothing, until `stack` is closed."""
    for place, name, value in (
        (app, "metrics", Uncounted(app.metrics)),
        (app, "authorizer", None),
        (app.host_check, "active", False),
        (asgi_request, "MemoryReservation", _free),
        (RequestContext, "fields", shortest),
    ):
        stack.enter_context(patch.object(place, name, value))


async def take_turns(app: Application, file: Path) -> None:
    """Switch off and on for TURN_S each, for ever. A line in `file` for each turn: which, its seconds, processor
    seconds and requests.
    """
    ways = itertools.cycle(("off", "on", "on", "off"))
    with file.open("a", buffering=1) as lines:
        while True:
            way = next(ways)
            with ExitStack() as stack:
                if way == "off":
                    switch_off(app, stack)
                request_header_cache.clear()  # what was found without keys would be looked up with keys each time
                begun, spent, first = monotonic(), process_time(), next(request_id.COUNTER)
                await asyncio.sleep(TURN_S)
                requests = next(request_id.COUNTER) - first - 1
                print(way, monotonic() - begun, process_time() - spent, requests, file=lines)


def main() -> None:
    """Serve until told to stop."""
    how, *flags = sys.argv[1:]
    settings = Settings(_cli_parse_args=flags)
    app = create_app(settings)
    with ExitStack() as stack:
        if how == "off":
            switch_off(app, stack)
        elif how == "turns":

            async def sweep_and_turn(connections: set[Any]) -> None:
                await asyncio.gather(sweep(connections), take_turns(app, Path(os.environ[TURNS_FILE])))

            stack.enter_context(patch("app.server.serve.sweep", sweep_and_turn))
        serve(settings, app)


if __name__ == "__main__":
    main()
