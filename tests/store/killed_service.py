"""A service of two workers that is killed, in part or whole, and started again on the same port and folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.free_port import free_port
from tests.workers.load import ask_once, request

ROOT = Path(__file__).parents[2]
PORT_OR_STORE_TAKEN = 1
"""The exit code of a start that finds workers of a killed parent that still run."""


class KilledService:
    """`gathernd serve` with some `flags` on one port and folder, over many lives."""

    def __init__(self, folder: Path, cache: Path, *flags: str) -> None:
        self.log, self.port = folder / "log.txt", free_port()
        self.command = [
            str(Path(sys.executable).with_name("gathernd")), "serve", "--workers", "2", "--kernel", "numpy",
            "--port", str(self.port), "--store-dir", str(folder / "store"), "--cache-dir", str(cache), *flags,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes]
        self.orphans: list[int] = []
        """Workers whose parent was killed, which still answer for a moment."""

    def start(self) -> None:
        """Start it and wait until it is ready; start it again while workers of a killed parent leave."""
        end = time.monotonic() + 120
        while not self._is_ready(end):
            assert time.monotonic() < end, self.tail()
            assert self.process.poll() == PORT_OR_STORE_TAKEN, self.tail()

    def _is_ready(self, end: float) -> bool:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        while time.monotonic() < end and self.process.poll() is None:
            self.orphans = [each for each in self.orphans if Path(f"/proc/{each}").exists()]
            with suppress(OSError, EOFError):
                # A worker that is killed while the service starts ends the start: wait for both.
                if (
                    not self.orphans
                    and self._get("/readyz")[0] == 200
                    and b"gathernd_processes 2.0" in self._get("/metrics")[1]
                ):
                    return True
            time.sleep(0.05)
        return False

    def _get(self, path: str) -> tuple[int, bytes]:
        answer = ask_once(self.port, request("GET", path, b""))
        return answer.status, answer.body

    def workers(self) -> list[int]:
        """The processes of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def kill_worker(self, rng: random.Random) -> bool:
        """SIGKILL one of the workers. Returns False if there is none."""
        found = self.workers()
        if found:
            os.kill(rng.choice(found), signal.SIGKILL)
        return bool(found)

    def kill(self) -> None:
        """SIGKILL the parent and all workers."""
        self._end([*self._stopped_workers(), self.process.pid])

    def kill_parent(self) -> None:
        """SIGKILL the parent alone, whose workers then stop by themselves."""
        self.orphans = self._stopped_workers()
        self._end([self.process.pid])

    def _stopped_workers(self) -> list[int]:
        self.process.send_signal(signal.SIGSTOP)  # it starts no worker from now on
        return self.workers()

    def _end(self, processes: Sequence[int]) -> None:
        for each in processes:
            os.kill(each, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Stop it as an operator does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.tail()

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-4000:]
