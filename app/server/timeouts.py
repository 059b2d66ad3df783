"""How much is borne with from senders and readers, and what is known of a client that is slow to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from app.server.http_exchange import HttpExchange


class Timeouts:
    """Limits on senders and readers, in seconds and bytes a second, and on headers, in bytes and fields."""

    def __init__(
        self,
        header: float,
        body: float,
        rate: int,
        header_bytes: int,
        header_fields: int,
        idle: float = 30.0,
        answer: float = 30.0,
        answer_rate: int = 1024,
    ) -> None:
        self.header = header
        self.body = body
        self.rate = rate
        self.header_bytes = header_bytes
        self.header_fields = header_fields
        self.idle = idle
        self.answer = answer
        self.answer_rate = answer_rate


class WriteProgress(NamedTuple):
    """A client that has not read all that was written for it, as of one sweep.

    Since `began` it has read from byte `first` of the answer of `cycle` to byte `read`, the last of them at `moved`.
    """

    cycle: HttpExchange | None
    began: float
    moved: float
    first: int
    read: int
