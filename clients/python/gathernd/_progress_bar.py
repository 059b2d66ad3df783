"""The bar that `progress=True` shows on stderr."""

from __future__ import annotations

import sys
from time import monotonic
from typing import Final

_WIDTH: Final = 30
_SECONDS_BETWEEN: Final = 0.1


class ProgressBar:
    """Shows the bytes done so far: `items  45% [####      ] 230.4 of 512.0 MB, 110.2 MB/s`.

    `total` is the total number of bytes, 0 until it is known. On a terminal the line is updated in place; elsewhere
    only the last line is written.
    """

    def __init__(self, name: str, total: int = 0) -> None:
        self.total = total
        self._name = name
        self._begun = monotonic()
        self._shown = 0.0

    def __call__(self, done: int) -> None:
        """Show that `done` bytes are done."""
        now = monotonic()
        complete = done >= self.total > 0
        if not complete and (now - self._shown < _SECONDS_BETWEEN or not sys.stderr.isatty()):
            return
        self._shown = now
        part = done / self.total if self.total else 0.0
        bar = "#" * round(_WIDTH * part)
        rate = done / 1e6 / max(now - self._begun, 1e-9)
        text = (
            f"{self._name} {part:4.0%} [{bar:<{_WIDTH}}] {done / 1e6:.1f} of {self.total / 1e6:.1f} MB, {rate:.1f} MB/s"
        )
        start = "\r" if sys.stderr.isatty() else ""
        end = "\n" if complete else ""
        sys.stderr.write(f"{start}{text}{end}")
        sys.stderr.flush()
