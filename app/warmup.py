"""Compile in advance what requests use, or load it from the cache.

With an empty cache, only an upload with many keys has to wait. Until the compiled functions are ready, NumPy's kernel
runs all plans, plain Python functions read and write requests (`app.compilation.until_compiled`), and JSON of more than
1 MiB is refused. Two other processes compile in the background: one compiles the kernels; the other compiles the
functions for keys, and then the readers and writers. Each part is loaded as soon as it is complete. A service with
NumPy's kernel compiles nothing and never imports Numba.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import Thread
from time import sleep
from typing import IO, Final, NamedTuple

from app.compilation.until_compiled import UntilCompiled

NUMBA: Final = "numba"
_PROCESSES: Final = (("kernels",), ("keys", "readers"))
"""The parts that each of the compiling processes compiles, in order."""
_POLL_S: Final = 0.1


class _Part(NamedTuple):
    """Code that is compiled together. `whole` is a file that exists only if the entire part is in the cache."""

    whole: Path
    load: Callable[[], None]
    """Loads the part, and compiles what is not in the cache."""

    def finish(self) -> None:
        """Load the part and mark it as complete."""
        self.load()
        with suppress(OSError):
            self.whole.touch()


def warm(cache_dir: Path, progress: Callable[[str], None], kernel: str = NUMBA) -> Callable[[], None] | None:
    """Load everything that requests use from `cache_dir`, for a service with this kernel.

    Returns None if everything is in the cache. Otherwise, returns a function that has everything compiled and then
    loads it. That takes about ten seconds and should run in a separate thread; the service works meanwhile.
    """
    if kernel != NUMBA:
        return None
    parts = _parts(cache_dir, progress)
    if all(part.whole.exists() for part in parts.values()):
        for part in parts.values():
            part.load()
        return None

    def compile_all() -> None:
        try:
            with _compilers_lock(cache_dir) as lock:
                for part in _load_compiled(parts, cache_dir, lock):
                    part.finish()
        finally:
            UntilCompiled.are_due = False

    UntilCompiled.are_due = True
    return compile_all


def _parts(cache_dir: Path, progress: Callable[[str], None]) -> Mapping[str, _Part]:
    from app import compile_request_functions as requests  # noqa: PLC0415
    from app.kernels import numba_cpu  # noqa: PLC0415

    kernels, functions = numba_cpu.configure(cache_dir), requests.configure(cache_dir)
    return {
        "keys": _Part(functions / "whole-keys", lambda: requests.warm(progress, requests.KEY_FUNCTIONS)),
        "kernels": _Part(kernels / "whole", lambda: numba_cpu.warm(progress)),
        "readers": _Part(functions / "whole", lambda: requests.warm(progress)),
    }


def _load_compiled(parts: Mapping[str, _Part], cache_dir: Path, lock: IO[bytes] | None) -> Iterable[_Part]:
    """Load each part as soon as it is complete, until all are loaded or the compiling processes have ended.

    Returns the parts that are still missing. In a group of workers, only the one that gets the lock starts the
    processes. If the folder cannot be written, there is no cache, and each worker compiles for itself.
    """
    missing = dict(parts)
    processes: list[subprocess.Popen[bytes]] | None = None
    while missing:
        owns = processes is not None or lock is None or _try_lock(lock)
        for name in [name for name, part in missing.items() if part.whole.exists()]:
            missing.pop(name).load()
        if processes is not None and all(process.poll() is not None for process in processes):
            break
        if owns and processes is None:
            processes = [_start(own, cache_dir) for own in _PROCESSES if missing.keys() & set(own)]
        sleep(_POLL_S)
    return missing.values()


def _start(parts: tuple[str, ...], cache_dir: Path) -> subprocess.Popen[bytes]:
    program = "import sys; from app.warmup import compile_parts; compile_parts(*sys.argv[1:])"
    command = [sys.executable, "-P", "-c", program, str(cache_dir), *parts]
    return subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603  (our own code); its input ends with this process


@contextmanager
def _compilers_lock(cache_dir: Path) -> Iterator[IO[bytes] | None]:
    """Yield the open file that a compiling worker locks, or None if the folder cannot be written."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        file = (cache_dir / "compiling.lock").open("ab")
    except OSError:
        yield None
        return
    with file:
        yield file


def _try_lock(lock: IO[bytes]) -> bool:
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except OSError:
        return False
    return True


def compile_parts(cache_dir: str, *names: str) -> None:
    """Compile parts into the cache. Run this in a separate process, which ends with its parent."""
    gc.disable()  # nearly all objects of a compiler are kept, and garbage collection would take a fifteenth of its time
    Thread(target=_end_with_parent, daemon=True).start()
    parts = _parts(Path(cache_dir), lambda text: None)
    for name in names:
        parts[name].finish()
    os._exit(0)  # without waiting for the reading thread


def _end_with_parent() -> None:
    os.read(0, 1)  # not `sys.stdin`, whose lock the interpreter needs when it exits
    os._exit(1)
