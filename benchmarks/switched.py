"""The service with everything that watches over requests switched off, for `benchmarks.cost` to compare it with itself.

python -m benchmarks.switched on|off|access FLAGS OF GATHERND SERVE

`off` is the same code with these parts replaced from outside by ones that do nothing: metrics and the count of requests
under way, API keys, Host and Origin, the memory budget, Server-Timing, request ids, the sweep for slow clients. What
takes no time of its own, such as the moments that deadlines and Server-Timing are made from, stays. `on` replaces
nothing; `access` also writes the access log. The service has no such switch.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from app.api import exchange
from app.api.exchange import Exchange
from app.main import Application, create_app
from app.serving import serve
from app.settings import Settings

PID_FILE = "GATHERND_COST_PID"


class Uncounted:
    """Stands for the metrics on the way of a request; for all else there are the real ones."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self) -> int:
        """Nothing is counted."""
        return 0

    def count(self, exchange: Exchange, code: str | None) -> None:
        """Nothing is counted."""


class Free:
    """A lease of a budget without end."""

    def __init__(self, budget: object) -> None:
        pass

    def charge(self, size: int) -> None:
        """Everything fits."""

    def admit(self, size: int) -> None:
        """Everything fits."""

    def release(self) -> None:
        """Nothing is held."""


def shortest(_: Exchange, content_type: bytes, size: int) -> bytes:
    """The header lines without Server-Timing and request id."""
    return b"content-type: %b\r\ncontent-length: %d\r\n" % (content_type, size)


async def nothing(*_: object) -> None:
    """Sweeps no connections."""
    await asyncio.Event().wait()


def switch_off(app: Application, stack: ExitStack) -> None:
    """Replace what watches over requests by what does nothing, until `stack` is closed."""
    app.metrics = Uncounted(app.metrics)  # type: ignore[assignment]
    app.access = None
    app.guard.active = False
    for place, name, value in (
        (exchange, "Lease", Free),
        (Exchange, "fields", shortest),
    ):
        stack.enter_context(patch.object(place, name, value))
    stack.enter_context(patch("app.serving.sweep", nothing))


def main() -> None:
    """Serve until told to stop."""
    how, *flags = sys.argv[1:]
    if how == "access":
        flags += ["--access-log", "true", "--log-format", "json"]
    settings = Settings(_cli_parse_args=flags)
    app = create_app(settings)
    with ExitStack() as stack:
        if how == "off":
            switch_off(app, stack)
        if PID_FILE in os.environ:
            Path(os.environ[PID_FILE]).write_text(str(os.getpid()))
        serve(settings, app)


if __name__ == "__main__":
    main()
