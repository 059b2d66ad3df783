"""The client of the hostile soak: many connections at once, pipelines on each, and a judgement of every answer.

One poll loop serves all connections, since a sender that does not read while it writes would stand still together with
a server that does neither, and threads would take the processor from the service.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from app.errors import CATALOGUE
from tests.security.hostile import SMUGGLED

ALLOWED_5XX: Final = {501, 503, 507}
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n")
_ID: Final = re.compile(rb"\r\nx-request-id: ([A-Za-z0-9._-]{1,128})\r\n")
_PATIENCE_S: Final = 60.0


@dataclass(slots=True)
class Answer:
    """An answer off the wire; `head` is everything before the body."""

    status: int
    id: str
    head: bytes
    body: bytes

    @property
    def closes(self) -> bool:
        return b"\r\nconnection: close\r\n" in self.head


@dataclass
class Judge:
    """What holds for every answer; counts statuses and codes. `secrets` may stand in none."""

    secrets: Sequence[bytes]
    seen: Counter[str] = field(default_factory=Counter)

    def judge(self, answer: Answer, to_head: bool) -> None:
        """Raises AssertionError."""
        status = answer.status
        self.seen[str(status)] += 1
        assert status < 500 or status in ALLOWED_5XX, answer
        assert answer.id != SMUGGLED, answer
        assert b"\r\nserver: " not in answer.head.lower(), answer
        assert b"\r\nserver-timing: " in answer.head, answer
        for secret in self.secrets:
            assert secret not in answer.body, (secret, answer)
        if status < 400:
            return
        assert status != 503 or b"\r\nretry-after: " in answer.head, answer
        if not to_head:
            problem = json.loads(answer.body)
            assert CATALOGUE[problem["code"]].status == status == problem["status"], answer
            self.seen[problem["code"]] += 1


class Connection:
    """A connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.buffer = bytearray()
        self.ended = False
        self.stopped = False

    def send(self, data: memoryview) -> int:
        """Send what can be sent at once; how much that was."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)  # it may refuse before it has read everything

    def receive(self) -> None:
        """Take what has come."""
        try:
            piece = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except ConnectionError:
            piece = b""
        self.ended = self.ended or not piece
        self.buffer += piece

    def answer(self, to_head: bool) -> Answer | None:
        """The next answer, None if it has not come whole. Raises AssertionError for what is none."""
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return None
            head = bytes(self.buffer[: end + 2])
            assert head.startswith(b"HTTP/1.1 "), head
            status = int(head[9:12])
            if status != 100:
                break
            del self.buffer[: end + 4]
        length = _LENGTH.search(head)
        assert length is not None or status in (204, 304), head
        size = 0 if to_head or length is None or status in (204, 304) else int(length[1])
        if len(self.buffer) < end + 4 + size:
            return None
        body = bytes(self.buffer[end + 4 : end + 4 + size])
        del self.buffer[: end + 4 + size]
        found = _ID.search(head)
        assert found is not None, head
        return Answer(status, found[1].decode(), head, body)

    def stop(self) -> None:
        """Send nothing more."""
        if not self.stopped:
            self.stopped = True
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close without ado: the other side hears of it at once, whatever is under way."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@dataclass
class Conversation:
    """Bytes to send on a line, and the answers to come: one for each of `heads`, which says whether that is to a HEAD.

    With `finish` the client stops sending after that, and everything until the server closes is read.
    """

    line: Connection
    data: memoryview
    head_requests: list[bool]
    finish: bool = False
    answers: list[Answer] = field(default_factory=list)

    def step(self) -> bool:
        """Send and take what can be; whether the conversation is over."""
        line = self.line
        if self.data:
            self.data = self.data[line.send(self.data) :]
        line.receive()
        while True:
            place = len(self.answers)
            to_head = place < len(self.head_requests) and self.head_requests[place]
            answer = line.answer(to_head)
            if answer is None:
                break
            self.answers.append(answer)
        complete = not self.data and len(self.answers) >= len(self.head_requests)
        if complete and self.finish:
            line.stop()
        return line.ended or (complete and not self.finish)


def hold_conversations(conversations: Sequence[Conversation], meanwhile: Callable[[], None]) -> None:
    """Hold these conversations at once. `meanwhile` is called now and then. Raises AssertionError if one stalls."""
    waiting = {one.line.socket.fileno(): one for one in conversations if not one.step()}
    poll = select.poll()
    for number, one in waiting.items():
        poll.register(number, select.POLLIN | (select.POLLOUT if one.data else 0))
    end = monotonic() + _PATIENCE_S
    while waiting:
        for number, _ in poll.poll(1000):
            one = waiting[number]
            if one.step():
                poll.unregister(number)
                del waiting[number]
            else:
                poll.modify(number, select.POLLIN | (select.POLLOUT if one.data else 0))
        assert monotonic() < end, (
            f"no answer: {[(one.head_requests, one.answers, one.data.tobytes()) for one in waiting.values()]}"
        )
        meanwhile()
