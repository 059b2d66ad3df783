"""Fork the servers that tests start from a process that has imported the service, which is most of a start's CPU.

A second process, forked by the first, has also loaded all compiled code out of the cache folder that tests share
(`load_from`); it forks servers with Numba's kernel. `make soak` starts every server as its users do.

    python -m tests.http.fork_server DESCRIPTOR   take requests from the socket DESCRIPTOR, until it is closed
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import runpy
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from time import monotonic, sleep
from typing import IO, BinaryIO

from app.server import supervisor
from app.telemetry import increments, request_id

GATHERND = str(Path(sys.executable).with_name("gathernd"))
_REQUEST_BYTES = 1 << 20
_ROOT = Path(__file__).parents[2]
_NOT_LOADED = ("--kernel", "--cache-dir")
"""Flags with which a server is forked by the one that has loaded nothing."""
_AFTER_IMPORTS = ("GATHERND_", "NO_PROXY", "OTEL_BSP_", "OTEL_EXPORTER_", "PATH")
"""How variables begin that no module reads while it is imported."""
_MADE_OF_IT = "tests.http.faulty_app"
"""The module that runs the service with a part of it changed."""
_COMPILING = {"compiling", "counting", "failing"}
"""Those services of `tests.http.faulty_app` whose point is what they compile or load."""
_asking = Lock()
_servers: dict[str, socket.socket] = {}
"""The connections to fork servers, by the folder out of which each has loaded compiled code; "" where none."""
_loaded: set[str] = set()


def load_from(folder: Path) -> None:
    """Have servers that use this cache folder, which has all compiled code, forked with it loaded."""
    _loaded.add(str(folder))


class ForkedProcess:
    """A process that the fork server has started, with those methods of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, folder: str) -> None:
        self.pid = pid
        self._folder = folder
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._pidfd)
        self._reaping = Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code, or minus the signal. Raises TimeoutExpired after `timeout` seconds."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("gathernd", timeout or 0)
        with self._reaping:
            if self.returncode is None:
                self.returncode = _ask(self._folder, {"wait": self.pid})
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self.wait() if self._has_ended(0) else None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it has not ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        ends = select.poll()
        ends.register(self._pidfd, select.POLLIN)
        return bool(ends.poll(None if timeout is None else 1000 * timeout))


def can_start(command: Sequence[str], variables: Mapping[str, str]) -> bool:
    """Whether `start` can run this: a Python program of this environment, and `variables` of its own that count after
    the imports only.
    """
    program = command[0] in (GATHERND, sys.executable)
    return program and all(name.startswith(_AFTER_IMPORTS) for name in variables)


def start(command: Sequence[str], folder: Path, variables: Mapping[str, str], log: BinaryIO) -> ForkedProcess:
    """Run `command` in `folder`, in a session of its own, with the environment `variables` and its output in `log`."""
    return _start(compiled_code(command, variables), command, folder, variables, log, log)


def run(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], timeout: float | None, cache_dir: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end, as `subprocess.run` does that captures its output.

    If there is a `cache_dir`, the program has loaded all compiled code out of it.
    """
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = _start(cache_dir, command, folder, variables, output, errors)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read().decode(), errors.read().decode())


def _start(
    cache_dir: str, command: Sequence[str], folder: Path, variables: Mapping[str, str], *outputs: IO[bytes]
) -> ForkedProcess:
    request = {"command": list(command), "folder": str(folder), "variables": dict(variables)}
    return ForkedProcess(_ask(cache_dir, request, *(file.fileno() for file in outputs)), cache_dir)


def compiled_code(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """The folder out of which a server would load all compiled code, where that may be done before it is forked."""
    folder = variables.get("GATHERND_CACHE_DIR", "")
    plain = "GATHERND_KERNEL" in variables or any(argument.startswith(_NOT_LOADED) for argument in command)
    return folder if folder in _loaded and _is_service(command) and not plain else ""


def _is_service(command: Sequence[str]) -> bool:
    """Whether this is the service, as it is or with a part changed that is not how it compiles."""
    if command[0] == GATHERND:
        return command[1] == "serve"
    if command[1] == "-c":
        return command[3:4] == ["serve"]
    return command[1] == "-m" and command[2] == _MADE_OF_IT and not _COMPILING.intersection(command[3:4])


def _ask(folder: str, request: Mapping[str, object], *descriptors: int) -> int:
    """The fork server's answer: a process id or an exit code. After a failure another fork server is started."""
    with _asking:
        server = _servers.get(folder) or _start_server(folder)
        try:
            socket.send_fds(server, [json.dumps(request).encode()], descriptors)
            answer = server.recv(_REQUEST_BYTES)
            assert answer, "the fork server has ended"
            return int(answer)
        except BaseException:
            server.close()
            _servers.pop(folder)
            raise


def _start_server(folder: str) -> socket.socket:
    """The connection to a new fork server, which ends with it. One that has loaded code is forked by the other."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    plain = _servers.get("") or _start_server("") if folder else None
    with its:
        if plain is not None:
            socket.send_fds(plain, [json.dumps({"load": folder}).encode()], [its.fileno()])
            plain.recv(_REQUEST_BYTES)
            atexit.register(ours.close)
        else:
            _start_first_server(ours, its)
    _servers[folder] = ours
    return ours


def _start_first_server(ours: socket.socket, its: socket.socket) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.http.fork_server", str(its.fileno())],
        pass_fds=[its.fileno()],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the tests, which then end their servers
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process with one thread may fork
    )

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()


def _load(folder: Path) -> None:
    """Load all compiled code out of `folder`. What forks then do to load it finds it loaded."""
    from app import compile_request_functions
    from app.kernels import numba_cpu

    numba_cpu.configure(folder)
    compile_request_functions.configure(folder)
    numba_cpu.warm()
    compile_request_functions.warm()
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with one thread may fork"


def _serve(requests: socket.socket) -> None:
    """Answer requests until the connection is closed. In a process that was asked for, run its program."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not text:
            return
        request = json.loads(text)
        if "wait" in request:
            requests.send(str(_exit_code(request["wait"])).encode())
            continue
        pid = os.fork()
        if not pid:
            requests.close()
            if "load" in request:
                _load(Path(request["load"]))
                requests = socket.socket(fileno=descriptors[0])
                continue
            os.setsid()
            _run(**request, outputs=descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        try:
            requests.send(str(pid).encode())
        except OSError:
            os.kill(pid, signal.SIGKILL)
            raise


class _ForkedWorker:
    """A worker process, forked from its service where a user's service starts another interpreter.

    It has those methods of `subprocess.Popen` that a supervisor uses.
    """

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int], stdin: int, process_group: int) -> None:
        assert stdin == subprocess.DEVNULL, stdin
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setpgid(0, process_group)
            _forget_parent(pass_fds)
            sys.argv = ["-c", *command[4:]]
            _end_with(lambda: exec(compile(command[3], "<string>", "exec"), {"__name__": "__main__"}))
        except BaseException:  # noqa: BLE001  (this process is no longer the one that called)
            traceback.print_exc()
        os._exit(1)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code, or minus the signal. Raises TimeoutExpired after `timeout` seconds."""
        end = None if timeout is None else monotonic() + timeout
        while end is not None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if monotonic() > end:
                raise subprocess.TimeoutExpired("worker", timeout or 0)
            sleep(0.01)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Send SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


class _WorkerStarts:
    """What a supervisor uses of the module `subprocess`."""

    Popen = _ForkedWorker
    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired


def _forget_parent(kept: Sequence[int]) -> None:
    """Leave to a worker of its parent's descriptors and signal handlers only what another program would get."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    bounds = [2, *sorted(kept), os.sysconf("SC_OPEN_MAX")]
    for before, after in pairwise(bounds):
        os.closerange(before + 1, after)


def _draw_ids_anew() -> None:
    """Give this process a prefix of request ids of its own, as if it had drawn it at import."""
    old = request_id.PREFIX.encode()
    prefix = secrets.token_hex(len(old) // 2)
    request_id.PREFIX = prefix  # type: ignore[misc]
    increments.HEADER_TEMPLATE[:] = increments.HEADER_TEMPLATE.replace(old, prefix.encode(), 1)


def _exit_code(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 255  # another fork server, which has ended, had started it


def _run(command: list[str], folder: str, variables: dict[str, str], outputs: list[int]) -> None:
    """Run a program with these descriptors as its output and its errors, and end this process."""
    os.chdir(folder)
    for descriptor, output in enumerate(outputs, 1):
        os.dup2(output, descriptor)
        os.close(output)
    os.environ.clear()
    os.environ.update(variables)
    supervisor.subprocess = _WorkerStarts  # type: ignore[attr-defined, assignment]
    _end_with(lambda: _run_program(command, folder))


def _end_with(program: Callable[[], None]) -> None:
    """Run a program as Python's command line does, and end this process.

    It ends as Python does, once threads have and what is registered has run, but for taking its modules apart: half of
    what a server costs that is started and stopped.
    """
    _draw_ids_anew()
    try:
        program()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    else:
        code = 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_program(command: list[str], folder: str) -> None:
    if command[1:3] == ["-X", "faulthandler"]:
        faulthandler.enable()
        command = [command[0], *command[3:]]
    if command[0] == GATHERND:
        sys.argv, sys.path[0] = command, str(Path(GATHERND).parent)
        runpy.run_path(GATHERND, run_name="__main__")
    elif command[1] == "-m":
        sys.argv, sys.path[0] = command[2:], folder
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    elif command[1] != "-c":
        sys.argv, sys.path[0] = command[1:], str(Path(command[1]).parent)
        runpy.run_path(command[1], run_name="__main__")
    else:
        sys.argv, sys.path[0] = ["-c", *command[3:]], ""
        exec(compile(command[2], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    gc.disable()
    import_module("gathernd_cli.command_line")
    import_module("app.cli.serve_command")
    import_module("app.cli.run_service")
    for late in ("encodings.idna", "fastapi_swagger", "uvicorn.loops.uvloop"):  # which are imported where they are used
        import_module(late)
    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=int(sys.argv[1])))
