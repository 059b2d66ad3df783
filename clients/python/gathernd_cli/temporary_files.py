"""Temporary files that are removed even if a signal ends the command."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import current_thread, main_thread
from types import FrameType
from typing import IO, Any, Final

_ENDING: Final = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_made: set[Path] = set()


@contextmanager
def temporary_file(**options: Any) -> Iterator[IO[bytes]]:
    """Yield a `tempfile.NamedTemporaryFile` with these options, and remove it when the block ends.

    SIGTERM and SIGHUP also remove it (by default, Python would leave it behind). A signal that is ignored stays
    ignored.
    """
    file = NamedTemporaryFile(delete=False, **options)  # noqa: SIM115
    path = Path(file.name)
    _made.add(path)
    before = {}
    if current_thread() is main_thread():
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _remove_and_end)
    try:
        with file:
            yield file
    finally:
        path.unlink(missing_ok=True)
        _made.discard(path)
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove_and_end(number: int, frame: FrameType | None) -> None:
    """Remove the files without waiting for threads, then end the process with the signal's default action."""
    for path in list(_made):
        with suppress(OSError):
            path.unlink()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
