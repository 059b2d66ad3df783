"""Run several worker processes on one port: a parent starts them, replaces dead ones, and stops them together.

As with uvicorn's `--workers`, the parent binds one listening socket, and newly started processes inherit it. With a
socket for each process (SO_REUSEPORT), a process that ends would lose the connections in its backlog. Forked processes
(gunicorn) would share the state of numba and threads. uvicorn's own parent is not used for four reasons: it lets a
process accept connections before it can respond, it may take seconds to notice that a worker has died, it does not
forward a drain, and it stops everything when a replacement fails to start.

Parent and worker (`app.server.worker_process`) exchange single bytes over a socket pair:

    to the worker                                   from the worker

    g   warm up now: the kernels are in the cache   o   the port is open
    a   accept connections                          w   warmed up
    d   drain and end                               a   accepting connections
    l   leave, while other workers carry on
    h   end the shutdown delay
    c   cut off running requests

The end of the stream means that the other process has ended. The parent therefore notices immediately when a worker
dies, and workers whose parent has died finish their requests and exit.

At startup, the first worker accepts connections immediately, so that /livez responds, and compiles the kernels for all
workers. The others wait for it. When all workers have warmed up, they accept connections, and /readyz returns 200. From
then on, only workers that are ready get requests, so responses do not depend on the worker. If a worker fails during
startup, the parent exits with 3.

If a worker dies after startup, the remaining workers keep serving. If its replacement fails to start, the parent tries
again after a pause. If no worker is left, the port refuses connections instead of letting clients wait. After
GIVE_UP_AFTER consecutive failures, the parent exits with 3 and leaves the decision to its own supervisor. A worker
reads its settings from a file in memory (`WorkerStart`).

The module is long because the reaction to each event (a report, a death, a signal, a check of the clock) depends on the
state of all workers.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from time import monotonic, sleep
from types import FrameType
from typing import Any, Final

from app.security.file_watcher import FileWatcher
from app.server import listening_sockets
from app.server.exit_codes import STARTUP_FAILURE
from app.server.serve import log_address, log_ready
from app.server.served_application import ServerOptions
from app.server.worker_process import WorkerStart
from app.telemetry.shared_counters import CounterGroup, SlotHeader, join

logger = logging.getLogger("gathernd")

HANG_LOOKS: Final = 30
"""A worker is killed if its event loop has not run during this many checks by its parent, which are a second apart."""
START_S: Final = 600.0
"""A worker is killed if it is not ready after this many seconds."""
GIVE_UP_AFTER: Final = 12
"""The parent ends after this many consecutive failed starts without a remaining worker: about half a minute."""
_KILL_AFTER_S: Final = 5.0
"""A worker is killed this many seconds after its drain should have ended."""
_BACKOFF_S: Final = (0.1, 5.0)
"""First and longest pause, in seconds, before a failed start is retried.

Each pause is twice as long as the previous one.
"""
_SHORT_LIFE_S: Final = 1.0
"""A worker that ends within this many seconds of accepting connections counts as a failed start."""

_FILES_S: Final = 1.0
"""Seconds between reads of the files that workers also read."""


class Worker:
    """A worker process as its parent sees it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, slot: int, replaces: Worker | None):
        self.process = process
        self.channel = channel
        self.slot = slot
        self.replaces = replaces
        self.warm = False
        self.told_to_accept = False
        self.accepting_since: float | None = None
        self.born = monotonic()
        self.leave_by: float | None = None
        self.killed = False
        self.last_beat = 0
        self.looks_without_beat = 0

    @property
    def leaving(self) -> bool:
        """Whether another worker has replaced this one."""
        return self.leave_by is not None

    def send(self, letter: bytes) -> None:
        """Send a command to the worker. If it has ended, its channel reports that."""
        with suppress(OSError):
            self.channel.send(letter)

    def send_accept(self) -> None:
        """Tell the worker to accept connections. It may accept some before its confirmation is read."""
        self.told_to_accept = True
        self.send(b"a")

    def kill(self) -> None:
        """Kill the worker (SIGKILL)."""
        self.killed = True
        self.process.kill()


class Supervisor:
    """The parent process.

    Each worker runs the Python source `program`, with the descriptor of its `WorkerStart` as the argument.

    `WorkerStart` passes on `settings`, `store_token` and the current contents of the `watchers`' files.
    """

    def __init__(
        self,
        options: ServerOptions,
        listeners: Sequence[socket.socket],
        program: str,
        settings: dict[str, Any],
        store_token: str,
        watchers: Sequence[FileWatcher[Any]] = (),
        grpc_addresses: Sequence[str] = (),
    ) -> None:
        self._options = options
        self._program = program
        self._settings = settings
        self._listeners = listeners
        self._url = listening_sockets.url(options.scheme, options.settings.host, listeners)
        self._store_token = store_token
        self._watchers = watchers
        self._grpc_addresses = grpc_addresses
        self._workers: list[Worker] = []
        self._group = CounterGroup(2 * options.settings.workers + 2)
        self._counters = join(self._group.fd, 0)
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._started = False
        self._told_ready = False
        self._stop_by: float | None = None
        self._code = 0
        self._failures = 0
        self._next_start = 0.0
        self._next_look = 0.0
        self._rolling: list[Worker] | None = None
        """Workers that the current rolling restart has yet to replace."""

    def run(self) -> int:
        """Start and supervise the workers until a signal arrives, then stop them. Returns the exit code."""
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._selector.register(wake_read, selectors.EVENT_READ, None)
        logger.info("parent process %d is starting %d workers", os.getpid(), self._options.settings.workers)
        for watcher in self._watchers:
            Thread(target=_watch, args=(watcher,), daemon=True).start()
        self._start(first=True)
        for _ in range(self._options.settings.workers - 1):
            if self._stop_by is None:
                self._start()
        while self._workers or self._stop_by is None:
            for key, _ in self._selector.select(0.25):
                if key.data is None:
                    with suppress(BlockingIOError):
                        wake_read.recv(64)
                else:
                    self._receive(key.data)
            while self._signals:
                self._handle_signal(self._signals.pop(0))
            self._check_workers()
        logger.info("parent process %d ends with %d", os.getpid(), self._code)
        return self._code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(number)

    # Starting workers, and their reports

    def _start(self, *, first: bool = False, replaces: Worker | None = None) -> None:
        taken = {worker.slot for worker in self._workers} | {0}
        slot = next(place for place in range(len(self._group.slots)) if place not in taken)
        try:
            process, ours = self._spawn(slot, first)
        except OSError as error:
            logger.error("no worker can be started: %s", error.strerror)
            if replaces is not None:
                self._abandon_restart()
            elif self._started:
                self._delay_next_start()
            else:
                self._code = STARTUP_FAILURE
                self._stop()
            return
        worker = Worker(process, ours, slot, replaces)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self._counters.add("gathernd_workers_started")
        if self._started:
            worker.send(b"g")

    def _spawn(self, slot: int, first: bool) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        start = WorkerStart(
            settings=self._settings,
            listeners=[listener.fileno() for listener in self._listeners],
            channel=theirs.fileno(),
            counters=self._group.fd,
            slot=slot,
            first=first,
            store_token=self._store_token,
            grpc_addresses=list(self._grpc_addresses),
            last_good={watcher.name: watcher.text() for watcher in self._watchers},
        )
        try:
            with theirs, start.write() as file:
                process = subprocess.Popen(  # noqa: S603  (our own interpreter and program)
                    # -P: do not import from the current folder. A separate process group: signals from a terminal reach
                    # only the parent, which passes them on.
                    [sys.executable, "-P", "-c", self._program, str(file.fileno())],
                    pass_fds=(file.fileno(), start.channel, start.counters, *start.listeners),
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
        except BaseException:
            ours.close()
            raise
        return process, ours

    def _receive(self, worker: Worker) -> None:
        try:
            received = worker.channel.recv(16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._on_ended(worker)
        elif self._stop_by is not None:
            return  # the service is stopping, so reports no longer matter
        for letter in received:
            if letter == ord("w"):
                self._on_warmed(worker)
            elif letter == ord("a"):
                self._on_accepting(worker)
            elif letter == ord("o"):
                log_address(self._options, self._url)

    def _on_warmed(self, worker: Worker) -> None:
        worker.warm = True
        if self._started:
            worker.send_accept()
        elif all(one.warm for one in self._workers):
            self._started = True
            for one in self._workers:
                one.send_accept()
        else:
            for one in self._workers:
                if not one.warm:
                    one.send(b"g")

    def _on_accepting(self, worker: Worker) -> None:
        worker.accepting_since = monotonic()
        logger.info("worker %d is accepting connections", worker.process.pid)
        old, worker.replaces = worker.replaces, None
        if old is not None and old in self._workers:
            old.leave_by = monotonic() + self._options.settings.drain_timeout + _KILL_AFTER_S
            old.send(b"l")
        elif all(one.accepting_since is not None for one in self._workers):
            self._failures = 0
            if not self._told_ready:
                self._told_ready = True
                log_ready(self._options, self._url)

    def _on_ended(self, worker: Worker) -> None:
        self._selector.unregister(worker.channel)
        worker.channel.close()
        try:
            code = worker.process.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        self._workers.remove(worker)
        self._group.release(worker.slot)
        if self._stop_by is not None:
            if code != 0 and not worker.killed:
                logger.error("worker %d ended with %s while stopping", worker.process.pid, _exit_text(code))
                self._code = self._code or 1
            return
        if worker.leaving and code == 0:
            return
        self._counters.add("gathernd_workers_died")
        logger.error("worker %d ended with %s", worker.process.pid, _exit_text(code))
        if worker.leaving:
            # The worker was already replaced, so its end does not affect the exit code of a later stop.
            return
        if not self._started:
            logger.error("the service cannot start: its worker's log lines above say why")
            self._code = STARTUP_FAILURE
            self._stop()
            return
        if worker.replaces is not None and worker.replaces in self._workers:
            self._abandon_restart()
            return
        lived = 0.0 if worker.accepting_since is None else monotonic() - worker.accepting_since
        if lived < _SHORT_LIFE_S:
            self._delay_next_start()

    def _abandon_restart(self) -> None:
        logger.error("the restart was abandoned; the running workers continue")
        self._rolling = None

    def _delay_next_start(self) -> None:
        low, high = _BACKOFF_S
        pause = min(high, low * 2**self._failures)
        self._next_start = monotonic() + pause
        self._failures += 1
        if self._is_serving():
            logger.error("a worker is missing; another start will be tried in %g s, and the others continue", pause)
            return
        listening_sockets.refuse(self._listeners)
        if self._failures >= GIVE_UP_AFTER:
            logger.error("no worker is left, and %d attempts to start one failed: giving up", self._failures)
            self._code = STARTUP_FAILURE
            self._stop()
        else:
            logger.error("no worker is left: connections are refused; another start will be tried in %g s", pause)

    def _is_serving(self) -> bool:
        """Return whether a worker accepts connections or is about to."""
        return any(one.told_to_accept and not one.leaving for one in self._workers)

    # Regular checks

    def _check_workers(self) -> None:
        now = monotonic()
        if self._stop_by is not None:
            if now > self._stop_by:
                for worker in self._workers:
                    logger.error("worker %d did not stop in time; killing it", worker.process.pid)
                    worker.kill()
                    self._code = self._code or 1
            return
        if now >= self._next_look:
            self._next_look = now + 1.0
            self._kill_hanging_workers(now)
        if not self._started:
            return
        staying = [one for one in self._workers if not one.leaving]
        pending = [one for one in staying if one.replaces is not None and one.replaces in staying]
        if len(staying) - len(pending) < self._options.settings.workers:
            if now >= self._next_start:
                self._start()
        elif self._rolling is not None and len(staying) == len(self._workers) and not pending:
            if not self._rolling:
                self._rolling = None
                logger.info("the restart has ended")
            # Replace the next worker after the previous one has ended and its successor accepts connections.
            elif all(one.accepting_since for one in staying):
                old = self._rolling.pop(0)
                if old in staying:
                    self._start(replaces=old)

    def _kill_hanging_workers(self, now: float) -> None:
        for worker in self._workers:
            if worker.leave_by is not None:
                overdue = now > worker.leave_by
            elif worker.accepting_since is None:
                overdue = now - worker.born > START_S
            else:
                # The time is counted in checks, not seconds. Otherwise, workers would appear to hang after the whole
                # machine was suspended.
                beat = self._group.slots[worker.slot].header[SlotHeader.HEARTBEAT]
                worker.looks_without_beat = worker.looks_without_beat + 1 if beat == worker.last_beat else 0
                worker.last_beat = beat
                overdue = worker.looks_without_beat >= HANG_LOOKS
            if overdue:
                logger.error("worker %d is not responding; killing it", worker.process.pid)
                worker.kill()

    # Signals

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            if self._stop_by is None and self._started:
                logger.info("restarting the workers one by one")
                self._rolling = [one for one in self._workers if not one.leaving]
        elif self._stop_by is None:
            logger.info("stopping")
            if self._started and not self._is_serving():
                self._code = 1
            self._stop()
        else:
            for worker in self._workers:
                worker.send(b"c" if number == signal.SIGINT else b"h")

    def _stop(self) -> None:
        # Clients can connect as long as any process has the socket open.
        for listener in self._listeners:
            listener.close()
        self._stop_by = (
            monotonic() + self._options.settings.drain_delay + self._options.settings.drain_timeout + _KILL_AFTER_S
        )
        self._rolling = None
        for worker in self._workers:
            if worker.told_to_accept:
                worker.send(b"d")
            else:
                # The worker has served nothing yet and may be compiling for a while.
                worker.kill()


def _watch(watcher: FileWatcher[Any]) -> None:
    """Reload files whenever they change, as the workers do.

    If a worker starts while a file is broken, it gets the contents that the others use, without keys that have been
    removed. This runs in a thread because file systems may hang. Unexpected errors are logged, and watching continues.
    """
    while True:
        sleep(_FILES_S)
        try:
            if watcher.read_if_changed() is not None:
                logger.info("%s: used for workers started from now on", watcher.name)
        except Exception:
            logger.exception("%s: the files could not be looked at", watcher.name)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
