"""A process that has imported the service and forks for each server that tests start, so that the import of a thousand
modules, most of a start's CPU, is done once. What a fork runs is the same program with the same arguments.

`make test` starts its servers so, those aside that are to start under a shell, a limit or a variable that counts while
modules are imported. `make test-all` and `make soak` start every server as its users do.

    python -m tests.http.fork_server DESCRIPTOR   take requests from the socket DESCRIPTOR, until it is closed
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import BinaryIO

_REQUEST_BYTES = 1 << 20
_SCRIPT = "gathernd"
_ROOT = Path(__file__).parents[2]
_asking = Lock()


class ForkedProcess:
    """A process that the fork server has started; its methods are those of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)
        self._asking_for_code = Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code, or minus the signal. Raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(_SCRIPT, timeout or 0)
            with self._asking_for_code:
                if self.returncode is None:
                    self.returncode = _asked({"wait": self.pid})
                    os.close(self._end)
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        if self.returncode is None and self._has_ended(0):
            self.wait()
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        ends = select.poll()
        ends.register(self._end, select.POLLIN)
        return bool(ends.poll(None if timeout is None else 1000 * timeout))

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it has not ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def can_start(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether `start` can run this: a Python program of ours, and variables that count after the imports only."""
    program = command[0] == sys.executable or Path(command[0]).name == _SCRIPT
    return program and all(name.startswith(("GATHERND_", "OTEL_")) for name in environment)


def start(command: Sequence[str], folder: Path, variables: Mapping[str, str], log: BinaryIO) -> ForkedProcess:
    """Run `command` in `folder`, in a session of its own, with the environment `variables` and its output in `log`."""
    request = {"command": list(command), "folder": str(folder), "variables": dict(variables)}
    return ForkedProcess(_asked(request, log.fileno()))


def _asked(request: Mapping[str, object], *descriptors: int) -> int:
    with _asking:
        server = _server()
        socket.send_fds(server, [json.dumps(request).encode()], descriptors)
        return int(server.recv(_REQUEST_BYTES))


@cache
def _server() -> socket.socket:
    """The connection to the fork server of this process, which ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, "-m", "tests.http.fork_server", str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], cwd=_ROOT, stdin=subprocess.DEVNULL)

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours


def _serve(requests: socket.socket) -> None:
    """Answer requests until the connection is closed. In a process that was asked for, run its program."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 1)
        if not text:
            return
        request = json.loads(text)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        elif answer := os.fork():
            os.close(descriptors[0])
        else:
            requests.close()
            _run(**request, log=descriptors[0])
            return
        requests.send(str(answer).encode())


def _run(command: list[str], folder: str, variables: dict[str, str], log: int) -> None:
    """Run a program as Python's command line does."""
    os.setsid()
    os.chdir(folder)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    os.environ.clear()
    os.environ.update(variables)
    if command[0] != sys.executable:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
    elif command[1] == "-m":
        sys.argv = command[2:]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *command[3:]]
        exec(compile(command[2], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    gc.disable()
    import_module("gathernd_cli.command_line")
    import_module("app.cli.serve_command")
    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[1])))
