"""Compiling ahead, or loading from the cache, all compiled code that requests use.

That is the gather kernel, unless it is NumPy's, and what every service needs: the readers and writers of JSON, and the
counting of requests.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Final

from app.kernels import numba_cpu
from app.telemetry import compiled_increments
from app.wire import v2_request_tensors
from app.wire.json import gather_messages

NUMBA: Final = "numba"


def warm(cache_dir: Path, progress: Callable[[str], None], kernel: str = NUMBA) -> None:
    """Compile all that requests to a service with this kernel use, or load it from `cache_dir`.

    Where nothing is cached yet, a second process compiles the gather kernel, which is half of it, into the cache
    meanwhile, since a process compiles on one core at a time; with NumPy's kernel there is no second process. What is
    missing afterwards is compiled here.
    """
    _configure(cache_dir, kernel)
    if any(cache_dir.rglob("*.nbi")):
        _warm(cache_dir, progress, kernel)
        return
    gc.disable()  # nearly all that a compiler makes is kept: to look for garbage takes it a fifteenth of its time
    try:
        _warm(cache_dir, progress, kernel, in_two=kernel == NUMBA and len(os.sched_getaffinity(0)) > 1)
    finally:
        gc.enable()


def _warm(cache_dir: Path, progress: Callable[[str], None], kernel: str, *, in_two: bool = False) -> None:
    helper = None
    if in_two:
        program = "import sys; from app.warmup import warm_kernel; warm_kernel(sys.argv[1])"
        command = [sys.executable, "-P", "-c", program, str(cache_dir)]
        helper = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603  (our own code)
    gather_messages.warm(progress)
    v2_request_tensors.warm(progress)
    compiled_increments.warm(progress)
    if helper is not None:
        helper.wait()
        assert helper.stdin is not None
        helper.stdin.close()
    if kernel == NUMBA:
        numba_cpu.warm(progress)


def warm_kernel(cache_dir: str) -> None:
    """The second process of `warm`; ends when the first one ends and closes its standard input."""
    gc.disable()  # as above
    Thread(target=_end_with_parent, daemon=True).start()
    numba_cpu.configure(Path(cache_dir))
    numba_cpu.warm()


def _configure(cache_dir: Path, kernel: str) -> None:
    if kernel == NUMBA:
        numba_cpu.configure(cache_dir)
    gather_messages.configure(cache_dir)
    v2_request_tensors.configure(cache_dir)
    compiled_increments.configure(cache_dir)


def _end_with_parent() -> None:
    while os.read(0, 1):  # not `sys.stdin`, whose lock the end of the interpreter would want
        pass
    os._exit(1)
