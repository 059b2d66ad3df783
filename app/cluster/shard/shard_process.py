"""The `gathernd serve` of a shard: started apart from whoever looks after it, adopted by the next one, restarted.

A process that has ended is started again at once, one that stands still is killed first. Its folder has its store, its
keys, its log, and a file with its process id and port, by which it is found again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

import orjson

from app.cluster.shard.shard_http import ShardClient
from app.cluster.shard_tls import ShardTls, trusting
from app.store.files.whole_file import write_whole_file

LOOK_S: Final = 0.5
STANDS_STILL_S: Final = 5.0
"""A process that has answered, and then does not for so long, is killed."""
START_S: Final = 60.0
"""How long a process that is started may take to its first answer, which may be that it is not ready."""
_DETACHED: Final = """
import subprocess, sys
with open(sys.argv[1], "ab") as log:
    started = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
print(started.pid)
"""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a shard's service is started: `host` is the address of its machine, `flags` are of `gathernd serve`.

    With `tls` it serves over TLS, and is asked so.
    """

    host: str
    folder: Path
    key: str | None
    max_bytes: int | None = None
    flags: tuple[str, ...] = ()
    tls: ShardTls | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    pid: int
    started: int
    """When, in clock ticks since the machine's start: process ids come again."""
    port: int


class ShardProcess:
    """The process of one shard. Its methods block; raise OSError."""

    def __init__(self, settings: ShardSettings) -> None:
        self._settings = settings
        self.tls = None if settings.tls is None else trusting(Path(settings.tls.authorities))
        """What it is asked with."""
        self._folder = settings.folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._folder / "process.json"
        self._running: _Running | None = None
        self._answered_at = 0.0
        self._has_answered = self._is_ready = False

    @property
    def address(self) -> str:
        """Where it answers, once it was started."""
        assert self._running is not None
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"{host}:{self._running.port}"

    @property
    def pid(self) -> int | None:
        """Its process id, None before it was started."""
        return None if self._running is None else self._running.pid

    def begin(self) -> None:
        """Adopt the process that runs, else start one."""
        self._write_keys()
        known = self._read()
        if known is not None and _started(known.pid) == known.started:
            self._running = known
            self._answered_at = time.monotonic()
        else:
            self._start(known.port if known is not None else 0)

    def wait_until_ready(self, stop: Event) -> None:
        """Wait for its first answer, restarting what ends before. Returns early where `stop` is set."""
        while not stop.is_set() and not self._is_ready:
            self.look()
            stop.wait(LOOK_S / 5)

    def look(self) -> None:
        """Start it again where it has ended, and kill it first where it stands still."""
        assert self._running is not None
        now = time.monotonic()
        if _started(self._running.pid) != self._running.started:
            logger.warning("the shard's process %d has ended: it is started again", self._running.pid)
            self._start(self._running.port)
            return
        client = ShardClient(self.address, self._settings.key, 1.0, self.tls)
        readiness = client.readiness()
        if readiness is not None:
            self._answered_at, self._has_answered, self._is_ready = time.monotonic(), True, readiness
        elif now - self._answered_at > (STANDS_STILL_S if self._has_answered else START_S):
            logger.warning("the shard's process %d stands still: it is killed (%s)", self._running.pid, client.failure)
            self._kill(signal.SIGKILL)

    def stop(self) -> None:
        """End it politely."""
        if self._running is None:
            self._running = self._read()
        if self._running is None:
            return
        self._kill(signal.SIGTERM)
        end = time.monotonic() + 20
        while _started(self._running.pid) == self._running.started:
            if time.monotonic() > end:
                self._kill(signal.SIGKILL)
            time.sleep(0.05)
        self._file.unlink(missing_ok=True)

    def _start(self, port: int) -> None:
        """With the port that it had, unless another program has that now."""
        self._has_answered = self._is_ready = False
        host = self._settings.host
        port = _free_port(host, port)
        command = [*self._command(), "--port", str(port)]
        log = self._folder / "serve.log"
        started = subprocess.run(  # noqa: S603  (our own interpreter and program)
            [sys.executable, "-c", _DETACHED, str(log), *command],
            capture_output=True, text=True, timeout=60, check=False, cwd=self._folder, env=_environment(os.environ),
        )  # fmt: skip
        if started.returncode:
            raise OSError(f"the shard could not be started: {started.stderr}")
        pid = int(started.stdout)
        self._running = _Running(pid, _started(pid), port)
        write_whole_file(self._file, orjson.dumps({"pid": pid, "started": self._running.started, "port": port}))
        self._answered_at = time.monotonic()

    def _command(self) -> Sequence[str]:
        settings = self._settings
        command = [
            sys.executable, "-m", "app.cli", "serve", "--host", settings.host,
            "--store-dir", str(self._folder / "store"), "--max-upload-bytes", str(1 << 50), *settings.flags,
        ]  # fmt: skip
        if settings.key is not None:
            command += ["--api-keys-file", str(self._folder / "keys")]
        if settings.tls is not None:
            command += ["--tls-cert", settings.tls.certificate]
            command += ["--tls-key", settings.tls.key] if settings.tls.key else []
        if settings.max_bytes is not None:
            command += ["--max-store-bytes", str(settings.max_bytes)]
        return command

    def _write_keys(self) -> None:
        if self._settings.key is None:
            return
        digest = hashlib.sha256(self._settings.key.encode()).hexdigest()
        path = self._folder / "keys"
        text = f"{digest} gather,tensors cluster\n"
        if not path.exists() or path.read_text() != text:
            beside = path.with_suffix(".new")
            beside.write_text(text)
            beside.chmod(0o600)
            beside.rename(path)

    def _read(self) -> _Running | None:
        try:
            return _Running(**orjson.loads(self._file.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _kill(self, number: int) -> None:
        assert self._running is not None
        if _started(self._running.pid) == self._running.started:
            with suppress(ProcessLookupError):
                os.kill(self._running.pid, number)


def capacity_of(max_bytes: int) -> int:
    """Bytes of rows for which a store of `max_bytes` has room: each file has a page and checksums beside."""
    return max(0, max_bytes - max_bytes // 64 - (1 << 16))


def _started(pid: int) -> int:
    """When a process was started, in clock ticks since the machine's start; 0 where there is none, or a dead one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _free_port(host: str, wanted: int) -> int:
    for port in (wanted, 0):
        with suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            free: int = found.getsockname()[1]
            return free
    raise OSError(f"no port is free at {host}")


def _environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Without settings of the service or program that looks after it, and what Ray sets for its workers."""
    return {
        name: value
        for name, value in variables.items()
        if name in _KEPT or not (name.startswith(("GATHERND_", "RAY_")) or name in _OF_RAY)
    }


_OF_RAY: Final = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_KEPT: Final = ("GATHERND_CACHE_DIR", "GATHERND_LOG_LEVEL", "GATHERND_LOG_FORMAT")
