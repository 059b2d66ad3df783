"""Compiling ahead, or loading from the cache, what requests use: the kernel first, the rest while requests are served.

With an empty cache only the gather kernel is waited for. Until the rest is compiled, plain functions read and write
requests (`app.compilation.until_compiled`), JSON of more than 1 MiB is refused, and NumPy's kernel runs GatherElements,
scatters and gradients. Numba is imported here alone, and not at all for a service with NumPy's kernel, which compiles
nothing.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from threading import Event, Thread
from typing import Final

from app.compilation.until_compiled import UntilCompiled

NUMBA: Final = "numba"
_SHARED_S: Final = 5.0
_ALONE_S: Final = 8.5
"""Seconds to readiness from an empty cache, compiled by two processes and by one (Intel Xeon and AMD EPYC, 2 cores)."""
_DONE, _GO_ON = b"d", b"g"
"""What the second process says when others need what it has compiled, and what it waits for once."""


def warm(
    cache_dir: Path,
    progress: Callable[[str], None],
    kernel: str = NUMBA,
    expect: Callable[[float], None] = lambda seconds: None,
) -> Callable[[], None] | None:
    """Compile what requests to a service with this kernel need first, or load all that they use from `cache_dir`.

    Where the kernel is not cached yet, a second process compiles half of it into the cache, since a process compiles on
    one core at a time. It goes on with all else. Before that `expect` is told in how many seconds, about, the service
    will be ready. Returns what takes over all else: it is for a thread of its own, once the service is ready, and takes
    seconds. None where nothing is left to be compiled.
    """
    if kernel != NUMBA:
        return None
    from app import compile_request_functions  # noqa: PLC0415
    from app.kernels import numba_cpu  # noqa: PLC0415

    kernel_folder, codec_folder = numba_cpu.configure(cache_dir), compile_request_functions.configure(cache_dir)

    def is_cached() -> bool:
        return numba_cpu.is_cached(kernel_folder) and compile_request_functions.is_cached(codec_folder)

    if is_cached():
        numba_cpu.warm(progress)
        compile_request_functions.warm(progress)
        return None
    helper = None
    if not any(kernel_folder.rglob("gather_kernel*.nbi")):
        several = len(os.sched_getaffinity(0)) > 1
        expect(_SHARED_S if several else _ALONE_S)
        helper = _start_helper(cache_dir) if several else None
    numba_cpu.leave_others_to_numpy()
    gc.disable()  # nearly all that a compiler makes is kept: to look for garbage takes it a fifteenth of its time
    try:
        if helper is not None:
            numba_cpu.compile_chunk()
            _wait_for(helper)
        numba_cpu.warm(progress, others=False)
    finally:
        gc.enable()

    def rest() -> None:
        try:
            compile_rest()
        finally:
            UntilCompiled.are_due = False

    def compile_rest() -> None:
        if helper is not None:
            go_on(helper)
        else:  # one worker of a group compiles, or a start that was cut short has left this
            with _alone(cache_dir):
                if not is_cached():
                    go_on(_start_helper(cache_dir, alone=True))
        compile_request_functions.warm(progress)
        numba_cpu.warm_others(progress)

    def go_on(second: subprocess.Popen[bytes]) -> None:
        assert second.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: all is compiled here
            second.stdin.write(_GO_ON)
            second.stdin.flush()
        _wait_for(second)
        compile_request_functions.warm(progress)
        second.wait()

    UntilCompiled.are_due = True
    return rest


def _start_helper(cache_dir: Path, *, alone: bool = False) -> subprocess.Popen[bytes]:
    program = "import sys; from app.warmup import compile_in_helper; compile_in_helper(sys.argv[1], bool(sys.argv[2]))"
    command = [sys.executable, "-P", "-c", program, str(cache_dir), "alone" if alone else ""]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603  (our own code)


def _wait_for(helper: subprocess.Popen[bytes]) -> None:
    """Until the second process has compiled what is needed next. If it ends before, that is compiled here."""
    assert helper.stdout is not None
    helper.stdout.read(1)


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


def compile_in_helper(cache_dir: str, alone: bool) -> None:
    """The second process of `warm`: compiles half of the kernel, and when it gets a byte, codec and other kernels.

    So it leaves the first process alone while that measures what gathers cost. Until then it ends with the first one.
    Other processes wait while it compiles, unless the one that has started it keeps them waiting (`alone`).
    """
    from app import compile_request_functions  # noqa: PLC0415
    from app.kernels import numba_cpu  # noqa: PLC0415

    gc.disable()  # as above
    go_on = Event()
    Thread(target=_end_with_parent, args=(go_on,), daemon=True).start()
    numba_cpu.configure(Path(cache_dir))
    compile_request_functions.configure(Path(cache_dir))
    if not alone:
        with _alone(Path(cache_dir)):
            numba_cpu.compile_others()
        _tell_parent(1)
    go_on.wait()
    with nullcontext() if alone else _alone(Path(cache_dir)):
        compile_request_functions.warm()
        _tell_parent(1)
        numba_cpu.warm_others()
    os._exit(0)  # without waiting for the thread that reads


def _tell_parent(pipe: int) -> None:
    """Say that what is needed next is compiled; a parent that has ended meanwhile does not wait for it."""
    with suppress(BrokenPipeError):
        os.write(pipe, _DONE)


def _end_with_parent(go_on: Event) -> None:
    if not os.read(0, 1):  # not `sys.stdin`, whose lock the end of the interpreter would want
        os._exit(1)
    go_on.set()
