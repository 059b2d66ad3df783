"""Temporary files of commands, which a signal that ends the command removes as well."""

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
    """A file of `tempfile.NamedTemporaryFile` with these options, there until the block ends, however it does.

    Python itself removes nothing where SIGTERM or SIGHUP ends the process. A signal that is ignored stays so.
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
    """Remove the files at once, whatever threads still wait for, and let the signal do what it does by itself."""
    for path in list(_made):
        with suppress(OSError):
            path.unlink()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
