"""Runs the link to the coordinator in a process of its own, and starts that process again when it ends.

This keeps the link's library out of the service: when its cluster is gone, Ray ends the process that it runs in.
Requests and answers are frames on the process's standard input and output: four bytes of length, then JSON.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from threading import Lock, Thread
from typing import IO, Any, Final, Protocol

import orjson

from app.cluster.coordinator.coordinator_link import CoordinatorLink

ANSWER_S: Final = 10.0
"""How long an answer may take beyond what the request waits for."""
SILENCES: Final = 3
"""A process that is silent for so many times `ANSWER_S`, though it was asked, is killed."""
RESTART_S: Final = 1.0
_CALLS: Final = 64
logger = logging.getLogger(__name__)


class KeyedLink(CoordinatorLink, Protocol):
    """A link that knows the key which shards are asked with."""

    def key(self) -> str | None:
        """The key. Raises OSError where the coordinator cannot be reached."""
        ...


def write_frame(file: IO[bytes], document: Any) -> None:
    """One frame. Raises OSError."""
    text = orjson.dumps(document)
    file.write(len(text).to_bytes(4, "little") + text)
    file.flush()


def read_frame(file: IO[bytes]) -> Any:
    """The next frame's document, None at the end of the file."""
    head = file.read(4)
    if len(head) < 4:
        return None
    text = file.read(int.from_bytes(head, "little"))
    return orjson.loads(text) if text else None


class ProcessLink:
    """The link of the process that `command` starts, which calls `serve_link`. It is started at the first call."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._numbers = count()
        self._writing = Lock()
        """Of what is written to a process: one that stands still reads nothing, and its pipe takes 64 KiB."""
        self._lock = Lock()
        """Of all that follows; nobody waits for a process within it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -RESTART_S
        self._pending: dict[int, tuple[subprocess.Popen[bytes], Future[Any]]] = {}
        self._silent_since: float | None = None
        """When the process was asked first since it last said something."""
        self._closed = False

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        """See `CoordinatorLink.exchange`."""
        asked = {"sender": sender, "texts": [text.decode() for text in texts], "wait_s": wait_s}
        return [text.encode() for text in self._ask(asked, wait_s + ANSWER_S)]

    def key(self) -> str | None:
        """The key that shards are asked with. Raises OSError where the coordinator cannot be reached."""
        found: str | None = self._ask({"key": True}, ANSWER_S)
        return found

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            _reap(process)

    def _ask(self, document: dict[str, Any], timeout: float) -> Any:
        number, answer = next(self._numbers), Future[Any]()
        end = time.monotonic() + timeout
        with self._lock:
            process = self._running()
            self._pending[number] = process, answer
            if self._silent_since is None:
                self._silent_since = time.monotonic()
        try:
            self._write(process, {"id": number, **document}, timeout)
            return answer.result(max(0.0, end - time.monotonic()))
        except TimeoutError:
            self._kill_if_silent(process)
            raise OSError("the link to the coordinator does not answer") from None
        finally:
            with self._lock:
                self._pending.pop(number, None)

    def _write(self, process: subprocess.Popen[bytes], document: Any, timeout: float) -> None:
        """Write a request. Raises TimeoutError if other writers block it for `timeout` seconds, and OSError."""
        if not self._writing.acquire(timeout=max(0.0, timeout)):
            raise TimeoutError
        try:
            assert process.stdin is not None
            write_frame(process.stdin, document)
        except ValueError:  # it has been closed
            raise OSError("the link to the coordinator has ended") from None
        finally:
            self._writing.release()

    def _kill_if_silent(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process if it has been silent for too long; the next call starts another one."""
        with self._lock:
            since = self._silent_since
            is_silent = since is not None and time.monotonic() - since >= SILENCES * ANSWER_S
            if is_silent and process is self._process:
                logger.warning("the link to the coordinator stands still: it is killed")
                process.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, started again where it has ended. Raises OSError."""
        if self._closed:
            raise OSError("the link to the coordinator is closed")
        if self._process is not None:
            return self._process
        if time.monotonic() - self._started_at < RESTART_S:
            raise OSError("the link to the coordinator has ended and is not yet started again")
        self._started_at = time.monotonic()
        self._silent_since = None
        self._process = process = subprocess.Popen(  # noqa: S603  (our own interpreter and program)
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        Thread(target=self._read, args=(process,), name="link", daemon=True).start()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with suppress(OSError, ValueError), process.stdout:
            while (frame := read_frame(process.stdout)) is not None:
                with self._lock:
                    if process is self._process:
                        self._silent_since = None
                    _, answer = self._pending.pop(frame["id"], (process, None))
                if answer is not None and "error" in frame:
                    answer.set_exception(OSError(frame["error"]))
                elif answer is not None:
                    answer.set_result(frame["answer"])
        with self._lock:
            lost = [answer for one, answer in self._pending.values() if one is process]
            closed = self._closed
            if self._process is process:
                self._process = None  # it may not quite have ended, and is asked no more
        if not closed:
            logger.warning("the link to the coordinator has ended")
        for answer in lost:
            with suppress(InvalidStateError):  # it was given up
                answer.set_exception(OSError("the link to the coordinator has ended"))
        process.kill()
        _reap(process)


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process; its output is closed by the thread that reads it."""
    process.wait()
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def serve_link(link: KeyedLink, asked: IO[bytes], answers: IO[bytes]) -> None:
    """What the link's process does: carry out requests side by side until `asked` ends."""
    lock = Lock()

    def carry_out(document: dict[str, Any]) -> None:
        frame: dict[str, Any]
        try:
            if "key" in document:
                frame = {"answer": link.key()}
            else:
                texts = [text.encode() for text in document["texts"]]
                found = link.exchange(document["sender"], texts, document["wait_s"])
                frame = {"answer": [text.decode() for text in found]}
        except OSError as error:
            frame = {"error": str(error)}
        with lock, suppress(OSError):
            write_frame(answers, {"id": document["id"], **frame})

    with ThreadPoolExecutor(_CALLS, "call") as pool:
        while (document := read_frame(asked)) is not None:
            pool.submit(carry_out, document)
