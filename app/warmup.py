"""Compiling ahead, or loading from the cache, what requests use.

With an empty cache nothing is waited for: until the compiled functions are there, NumPy's kernel runs all plans, plain
functions read and write requests (`app.compilation.until_compiled`), and JSON of more than 1 MiB is refused. Two other
processes compile meanwhile, one the kernels and one the readers and writers. Numba is imported here alone, and not at
all for a service with NumPy's kernel, which compiles nothing.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Thread
from typing import Final

from app.compilation.until_compiled import UntilCompiled

NUMBA: Final = "numba"
_PARTS: Final = ("kernels", "readers")
"""What the other processes compile, one each."""


def warm(cache_dir: Path, progress: Callable[[str], None], kernel: str = NUMBA) -> Callable[[], None] | None:
    """Load all that requests to a service with this kernel use from `cache_dir`.

    Returns None then, or, if not all is there, a function that has it compiled and loads it. That takes some ten
    seconds, and is for a thread of its own: the service works meanwhile.
    """
    if kernel != NUMBA:
        return None
    from app import compile_request_functions  # noqa: PLC0415
    from app.kernels import numba_cpu  # noqa: PLC0415

    whole = numba_cpu.configure(cache_dir) / f"whole-{compile_request_functions.configure(cache_dir).name}"

    def load() -> None:
        numba_cpu.warm(progress)
        compile_request_functions.warm(progress)

    if whole.exists():
        load()
        return None

    def compile_all() -> None:
        try:
            with _alone(cache_dir):  # one worker of a group compiles
                if not whole.exists():
                    for process in [_start(part, cache_dir) for part in _PARTS]:
                        process.wait()
            load()  # what a process that failed has left is compiled here
            with suppress(OSError):
                whole.touch()
        finally:
            UntilCompiled.are_due = False

    UntilCompiled.are_due = True
    return compile_all


def _start(part: str, cache_dir: Path) -> subprocess.Popen[bytes]:
    program = "import sys; from app.warmup import compile_part; compile_part(*sys.argv[1:])"
    # Its input stays open until this process ends.
    return subprocess.Popen([sys.executable, "-P", "-c", program, part, str(cache_dir)], stdin=subprocess.PIPE)  # noqa: S603  (our own code)


@contextmanager
def _alone(cache_dir: Path) -> Iterator[None]:
    """Wait until no other process compiles into the cache, and keep others waiting.

    A folder that cannot be written is no cache: there each process compiles for itself.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        file = (cache_dir / "compiling.lock").open("ab")
    except OSError:
        yield
        return
    with file:
        flock(file, LOCK_EX)
        yield


def compile_part(part: str, cache_dir: str) -> None:
    """Compile one of `_PARTS` into the cache, as a process of its own; it ends with the one that started it."""
    from app import compile_request_functions  # noqa: PLC0415
    from app.kernels import numba_cpu  # noqa: PLC0415

    gc.disable()  # nearly all that a compiler makes is kept: to look for garbage takes it a fifteenth of its time
    Thread(target=_end_with_parent, daemon=True).start()
    compiler = numba_cpu if part == "kernels" else compile_request_functions
    compiler.configure(Path(cache_dir))
    compiler.warm()
    os._exit(0)  # without waiting for the thread that reads


def _end_with_parent() -> None:
    os.read(0, 1)  # not `sys.stdin`, whose lock the end of the interpreter would want
    os._exit(1)
