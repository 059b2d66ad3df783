"""Run a process that ends with its parent and is restarted when it ends or hangs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from ssl import SSLContext
from threading import Event
from typing import Final

from app.api.route_table import path_of
from app.cluster.shard.pull_segment import shard_connection

LOOK_S: Final = 0.5
AGAIN_S: Final = 1.0
"""Minimum seconds between two starts of a process."""
STANDS_STILL_S: Final = 5.0
"""A process that has responded before is killed after this many seconds without a response, so that it restarts before
its lease expires.
"""
ANSWER_S: Final = 1.0
STOP_S: Final = 40.0
"""Maximum seconds for a process to end after SIGTERM."""
_ENDS_WITH_ITS_PARENT: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
_KEPT: Final = ("GATHERND_CACHE_DIR", "GATHERND_LOG_LEVEL", "GATHERND_LOG_FORMAT")
_OF_RAY: Final = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
logger = logging.getLogger(__name__)


class ChildProcess:
    """A supervised process. `command` returns its command line and is called before each start.

    `is_live` returns whether the process responds; None skips that check. The process's output is appended to the `log`
    file. If `log` is None, it goes to this process's output.
    """

    def __init__(
        self, command: Callable[[], Sequence[str]], log: Path | None = None, is_live: Callable[[], bool] | None = None
    ) -> None:
        self._command = command
        self._log = log
        self._answers = is_live
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process ID, or None before the first start."""
        return None if self._process is None else self._process.pid

    def run(self, stop: Event) -> None:
        """Keep the process running until `stop` is set, then end it. Blocks.

        The process also ends when the thread that called this method ends.
        """
        while not stop.is_set():
            begun = time.monotonic()
            self._process = process = self._start()
            self._watch(process, stop)
            if stop.is_set():
                _end_process(process)
                return
            logger.warning("process %d ended with %s: restarting it", process.pid, process.returncode)
            stop.wait(max(0.0, begun + AGAIN_S - time.monotonic()))

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _ENDS_WITH_ITS_PARENT, str(os.getpid()), *self._command()]
        environment = without_settings(os.environ)
        if self._log is None:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)  # noqa: S603  (our program)
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  (our program)
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _watch(self, process: subprocess.Popen[bytes], stop: Event) -> None:
        """Return when the process has ended or `stop` is set. Kill the process if it hangs."""
        answered: float | None = None
        while process.poll() is None and not stop.wait(LOOK_S):
            if self._answers is None:
                continue
            now = time.monotonic()
            if self._answers():
                answered = time.monotonic()
            elif answered is not None and now - answered > STANDS_STILL_S:
                logger.warning("process %d no longer responds: killing it", process.pid)
                process.kill()
                process.wait()


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_live(address: str, tls: SSLContext | None = None) -> bool:
    """Return whether the service at an address reports that it is alive."""
    connection = shard_connection(address, tls, ANSWER_S)
    try:
        connection.request("GET", path_of("livez"))
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without the service's settings and Ray's variables for its workers."""
    return {
        name: value
        for name, value in variables.items()
        if name in _KEPT or not (name.startswith(("GATHERND_", "RAY_")) or name in _OF_RAY)
    }
