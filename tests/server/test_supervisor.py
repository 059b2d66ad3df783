"""The parent of several workers in events whose order the service does not fix: stand-ins for the workers do.

A stand-in says what a worker says over its channel (see `app.server.supervisor`) and serves nobody. tests/workers has
the other events, with the service itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.security import api_keys
from tests.conftest import slow_but_for
from tests.http import server as servers
from tests.http.fork_server import ForkedProcess
from tests.workers.load import until

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WORKER = """
import os, socket, sys
from app.server.worker_process import WorkerStart
start = WorkerStart.read(int(sys.argv[1]))
channel = socket.socket(fileno=start.channel)
listeners = [socket.socket(fileno=descriptor) for descriptor in start.listeners]
if start.first:
    channel.send(b"ow")
if start.settings:
    from pathlib import Path
    from app.security.authorizer import KeyAuthorizer
    keys = KeyAuthorizer(Path(start.settings["keys"]), start.last_good)
    labels = " ".join(key.label for key in keys._keys.values())
    os.write(1, f"worker {os.getpid()} starts with {labels}\\n".encode())  # in one piece, since two workers write
while letter := channel.recv(1):
    if letter == b"g":
        channel.send(b"w")
    elif letter == b"a":
        for listener in listeners:
            listener.listen()
        channel.send(b"a")
    else:
        break
os._exit(0)
"""
PARENT = """
import logging, sys
from pathlib import Path
from types import SimpleNamespace
import app.server.supervisor as watched
from app.security.authorizer import KeyAuthorizer
from app.server import listening_sockets
from app.settings import Settings
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
watched._KILL_AFTER_S, watched._BACKOFF_S, watched._SHORT_LIFE_S = 1.0, (0.05, 0.1), 0.0
watched.log_ready = lambda *_: print("ready", flush=True)
watched.log_address = lambda *_: None
settings = Settings(workers=2, drain_timeout=0.2)
options = SimpleNamespace(scheme="http", settings=settings)
listeners = listening_sockets.bind("127.0.0.1", 0)
print("port", listeners[0].getsockname()[1], flush=True)
keys = KeyAuthorizer(Path(sys.argv[2])) if sys.argv[2:] else None
handed_on = {"keys": sys.argv[2]} if keys else {}
sys.exit(watched.Supervisor(options, listeners, sys.argv[1], handed_on, "", [keys.watcher] if keys else []).run())
"""


class Parent:
    """A parent with two workers that take connections, or one that has said `begun`."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, log: Path, begun: str) -> None:
        self.process = process
        self._log = log
        self.said(begun)
        self.port = int(self.log().split()[1])

    def log(self) -> str:
        return self._log.read_text()

    def said(self, text: str, times: int = 1) -> None:
        """Wait until the log has this so many times."""

        def is_there() -> bool:
            assert self.process.poll() is None, self.log()
            return self.log().count(text) >= times

        until(is_there, 60, text)

    def workers(self) -> list[int]:
        """The process ids of the workers."""
        pid = self.process.pid
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def stop(self) -> int:
        """Stop it; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def parent(folder: Path, *arguments: str, program: str = WORKER, begun: str = "ready") -> Iterator[Parent]:
    log = folder / "log"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("wb") as output:
        command = [sys.executable, "-c", PARENT, program, *arguments]
        process = servers.start(command, ROOT, {**os.environ, "PYTHONPATH": path}, {}, output)
    try:
        yield Parent(process, log, begun)
    finally:
        process.kill()  # which ends the workers, too: the other end of their channels is gone
        process.wait(60)


def break_at_once(file: Path) -> None:
    """Put what is no keys file in its place, in one step: while a file is written anew, it is empty, and has no key."""
    broken = file.with_name("broken")
    broken.write_text("broken\n")
    broken.replace(file)


def test_a_worker_that_starts_while_the_keys_file_is_broken_knows_no_key_that_was_removed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    api_keys.add(file, "kept", ["gather"])
    api_keys.add(file, "removed", ["gather"])
    with parent(tmp_path, str(file)) as running:
        api_keys.remove(file, "removed")
        api_keys.add(file, "added", ["gather"])
        running.said("keys file: handed on to workers that start from now on")
        break_at_once(file)
        os.kill(running.workers()[0], signal.SIGKILL)
        running.said("takes connections", times=3)
        lines = [line for line in running.log().splitlines() if "starts with" in line]
        assert [line.partition("starts with ")[2] for line in lines] == ["kept removed"] * 2 + ["kept added"]
        assert running.stop() == 0, running.log()


@pytest.mark.parametrize("reported", slow_but_for((1,), (0, 1)))
def test_a_stop_before_every_worker_takes_connections_kills_none_that_may(tmp_path: Path, reported: int) -> None:
    # So many of the two report that they take connections, and the others do once the stop has begun.
    report = 'channel.send(b"a")'
    wait = f"channel.recv(1, socket.MSG_PEEK) if start.first or {not reported} else None"
    program = WORKER.replace(report, f'os.write(1, b"told\\n"); {wait}; {report}')
    program = program.replace("os._exit", r'os.write(1, b"got %b\n" % letter); os._exit')
    with parent(tmp_path, program=program, begun="told") as starting:
        starting.said("told", times=2)
        starting.said("takes connections", times=reported)
        assert starting.stop() == 0, starting.log()
        assert starting.log().count("got d") == 2, starting.log()
        assert "ready" not in starting.log(), "it stops"
