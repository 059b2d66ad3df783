"""How long, how slow and how large: the limits on clients while they send requests and read answers."""

from __future__ import annotations

from typing import NamedTuple


class Timeouts(NamedTuple):
    """Limits on senders and readers, in seconds and bytes a second, and on headers, in bytes and fields.

    `header` is for a whole header, `body` for a pause within a body, `idle` for a connection without a request, and
    `answer` for a pause in reading an answer; the rates are averages.
    """

    header: float
    body: float
    body_rate: int
    header_bytes: int
    header_fields: int
    idle: float = 130.0
    answer: float = 30.0
    answer_rate: int = 1024


class WriteProgress(NamedTuple):
    """How far a client has read an answer that waits to be sent, as of the last look (see `slow_and_idle_clients`).

    Since `began` it has read from byte `first` of the answer of `exchange` to byte `read`, the last of them at `moved`.
    """

    exchange: object
    began: float
    moved: float
    first: int
    read: int
