"""Compiling ahead: every kernel and reader that requests use, or loading them from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from app.api import moments
from app.kernels import numba_cpu
from app.wire import native_json, oip_v2


def warm(cache_dir: Path, progress: Callable[[str], None]) -> None:
    """Compile every kernel and reader that requests use, or load them from `cache_dir`.

    Where nothing is cached yet, a second process compiles its half into the cache meanwhile: compilers of one process
    take turns. What it did not do is done here.
    """
    _configure(cache_dir)
    helper = None
    if not any(cache_dir.rglob("*.nbi")) and len(os.sched_getaffinity(0)) > 1:
        command = [sys.executable, "-P", "-c", "import sys; from app.warming import warm_half; warm_half(sys.argv[1])"]
        helper = subprocess.Popen([*command, str(cache_dir)], stdin=subprocess.PIPE)  # noqa: S603  (our own code)
    native_json.warm(progress)
    if helper is not None:
        helper.wait()
        assert helper.stdin is not None
        helper.stdin.close()
    numba_cpu.warm(progress)
    oip_v2.warm(progress)
    moments.warm(progress)


def warm_half(cache_dir: str) -> None:
    """What the second process of `warm` does, as long as the first one lives, at the other end of its input."""
    Thread(target=_end_with_parent, daemon=True).start()
    _configure(Path(cache_dir))
    numba_cpu.warm()
    oip_v2.warm()
    moments.warm()


def _configure(cache_dir: Path) -> None:
    numba_cpu.configure(cache_dir)
    native_json.configure(cache_dir)
    oip_v2.configure(cache_dir)
    moments.configure(cache_dir)


def _end_with_parent() -> None:
    while os.read(0, 1):  # not `sys.stdin`, whose lock the end of the interpreter would want
        pass
    os._exit(1)
