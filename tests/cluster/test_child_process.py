"""A process that is started again where it ends or stands still, and ends with the one that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from app.cluster import child_process
from app.cluster.child_process import ChildProcess, is_live, without_settings
from tests.cluster.waiting import until
from tests.free_port import free_port

ANSWERING = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
print("begun", flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
PARENT = """
import sys, time
from threading import Event
from app.cluster.child_process import ChildProcess
child = ChildProcess(lambda: [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"])
child.run(Event())
"""


@contextmanager
def kept(process: ChildProcess) -> Iterator[None]:
    stop = Event()
    thread = Thread(target=process.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_it_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr(child_process, "ANSWER_S", 0.5)
    monkeypatch.setattr(child_process, "STANDS_STILL_S", 1.0)
    port = free_port()
    address = f"127.0.0.1:{port}"
    seen: list[bool] = []

    def look() -> bool:
        seen.append(is_live(address))
        return seen[-1]

    process = ChildProcess(lambda: [sys.executable, "-c", ANSWERING, str(port)], tmp_path / "log", look)
    with kept(process):
        until(lambda: any(seen), "it answers")
        pid = process.pid
        assert pid is not None
        os.kill(pid, number)
        until(lambda: process.pid != pid and is_live(address), "it answers again")
        assert not runs(pid)
        last = process.pid
        assert last is not None
    assert not runs(last)
    assert (tmp_path / "log").read_text().count("begun\n") == 2


def test_it_ends_with_the_process_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runs(pid)
        parent.kill()
    until(lambda: not runs(pid), "it has ended")


def test_it_has_no_settings_of_whoever_starts_it() -> None:
    given = dict.fromkeys(("GATHERND_CLUSTER", "OMP_NUM_THREADS", "RAY_JOB_ID", "GATHERND_LOG_LEVEL", "PATH"), "1")
    assert set(without_settings(given)) == {"GATHERND_LOG_LEVEL", "PATH"}
