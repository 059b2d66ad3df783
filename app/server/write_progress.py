"""How far a client has read its answer."""

from __future__ import annotations

from typing import NamedTuple


class WriteProgress(NamedTuple):
    """How far a client has read an answer that waits to be sent, as of the last look (see `slow_and_idle_clients`).

    Since `began` it has read from byte `first` of the answer of `exchange` to byte `read`, the last of them at `moved`.
    """

    exchange: object
    began: float
    moved: float
    first: int
    read: int
