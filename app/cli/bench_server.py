"""The server that `gathernd bench` measures: a `gathernd serve` on loopback, with a store that is gone afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from typing import Final, NoReturn

from app.api.route_table import path_of

COMMAND: Final = (sys.executable, "-P", "-m", "app.cli", "serve")
"""-P: the current folder may hold anything."""
KEPT_SETTINGS: Final = tuple(
    f"GATHERND_{name}"
    for name in ("THREADS", "KERNEL", "DEVICE", "GPU_MEMORY", "LOOP_MAX_US", "SPLIT_MIN_US", "MEMORY_BUDGET")
)
"""The variables that the server takes over: those that say how gathers run. Keys, TLS, limits and the rest are not what
is measured, and some would keep the measurement out."""
_START_S: Final = 300
"""Seconds until the server must be ready; the first start on a machine compiles for some ten."""
_END_S: Final = 10
_LISTENS: Final = re.compile(r"http://127\.0\.0\.1:([0-9]+)")
_LOG_LINES: Final = 20


class BenchFailed(Exception):
    """The server did not start, or did not answer as it should; says why."""


@contextmanager
def running_server(cache_dir: Path) -> Iterator[int]:
    """Run a server until the block ends, however it ends; yields its port on 127.0.0.1.

    Its store is a temporary folder; what it compiles and calibrates is kept in `cache_dir`, as a service's is. SIGTERM
    and SIGHUP end the block by SystemExit, unless they are ignored. Raises BenchFailed where the server ends early or
    is not ready in time.
    """
    with _signals_end_the_block(), _temporary_folder() as folder:
        log = folder / "log"
        process = None
        try:
            with log.open("wb") as sink:
                process = subprocess.Popen(  # noqa: S603  (our own interpreter and program)
                    [*COMMAND, *_flags(folder / "store", cache_dir)],
                    env=_environment(os.environ),
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    process_group=0,  # Ctrl-C in a terminal is for this process, which ends the server
                )
            yield _ready_port(process, log)
        finally:
            if process is not None:
                _end(process)


def _flags(store_dir: Path, cache_dir: Path) -> list[str]:
    """The server's flags; of ports it takes a free one."""
    folders = ["--store-dir", str(store_dir), "--cache-dir", str(cache_dir.absolute())]
    return ["--host", "127.0.0.1", "--port", "0", *folders]


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in variables.items()
        if name in KEPT_SETTINGS or not name.startswith(("GATHERND_", "OTEL_"))
    }


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        made = tempfile.TemporaryDirectory(prefix="gathernd-bench-")
    except OSError as error:
        raise BenchFailed(f"no temporary folder for the server's store: {error}") from None
    with made as folder:
        yield Path(folder)


@contextmanager
def _signals_end_the_block() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # as nohup has it
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ready_port(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port of the server once it is ready."""
    until = monotonic() + _START_S
    while monotonic() < until:
        code = process.poll()
        text = log.read_text(errors="replace")
        if code is not None:
            raise BenchFailed(f"the server ended with exit code {code} before it was ready\n{_last_lines(text)}")
        found = _LISTENS.search(text)
        if found is not None and _is_ready(int(found[1])):
            return int(found[1])
        sleep(0.02)
    raise BenchFailed(f"the server was not ready after {_START_S} s\n{_last_lines(log.read_text(errors='replace'))}")


def _last_lines(text: str) -> str:
    return "\n".join(text.splitlines()[-_LOG_LINES:])


def _is_ready(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path_of("readyz"))
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server politely, or at once where it takes too long or the wait is cut short."""
    try:
        process.terminate()
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        process.kill()
        process.wait()
