"""Ship a range's records from its primary to all in-sync replicas concurrently."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from app.api.route_table import path_of
from app.cluster.replication.primary import SHIP_S, Round, append_of
from app.cluster.replication.replica import Append, AppendAnswer, Appended, ReplicaState
from app.cluster.shard.peers import PeerFailed, PeerRequest, Peers
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_messages import append_pieces, read_append_answer

SLOWEST: Final = 1 << 25
"""Lowest rate at which a replica is assumed to accept records, in bytes per second."""
_LEAST_S: Final = 0.05
_PAUSE_S: Final = 0.05


class Shipping:
    """Records to ship for the range `tensor`. `state` is the state of the primary's log, which contains all of them.

    `frames` holds the records after the sequence `after`.
    """

    def __init__(
        self, peers: Peers, log: RangeLog, tensor: str, state: ReplicaState, after: int, frames: bytes
    ) -> None:
        self._peers = peers
        self._log = log
        self._tensor = tensor
        self._state = state
        self._records = {after: (append_of(state, after, state.tail[after - state.applied :]), frames)}
        self._first = after
        self._after: dict[str, int] = {}
        """For each replica that has responded, the sequence after which it needs records."""

    def ship(self, going: Round) -> Round:
        """Send each replica the records that it is missing, wait for all responses, and return the updated round."""
        seconds = max(_LEAST_S, going.began + SHIP_S - time.monotonic())
        with ExitStack() as stack:
            requests = {}
            for node in going.pending_replicas - going.failed:
                records = self._records_after(self._after.get(node, self._first))
                if records is None:
                    going = going.with_failure(node)
                    continue
                requests[node] = stack.enter_context(_request(self._peers, self._tensor, node, *records, seconds))
            is_busy = False
            for node, request in requests.items():
                answer = _answer(request)
                if isinstance(answer, Busy):
                    is_busy = True
                elif answer is None:
                    going = going.with_failure(node)
                else:
                    going = going.with_answer(node, answer)
                    self._after[node] = answer.matched if isinstance(answer, Appended) else answer.applied
        if is_busy:
            time.sleep(_PAUSE_S)
        return going

    def _records_after(self, sequence: int) -> tuple[Append, bytes] | None:
        """Return a message with the records after a sequence, or None if they are no longer in the log."""
        if sequence not in self._records:
            frames, epochs = self._log.records_after(self._tensor, sequence)
            if frames is None:
                return None
            self._records[sequence] = append_of(self._state, sequence, epochs), frames
        return self._records[sequence]


def send(peers: Peers, tensor: str, node: str, message: Append, frames: bytes = b"") -> AppendAnswer | None:
    """Send records, or only a commit notice, to one replica. Returns None if it does not respond."""
    with _request(peers, tensor, node, message, frames, SHIP_S + len(frames) / SLOWEST) as request:
        answer = _answer(request)
    return None if isinstance(answer, Busy) else answer


def _request(peers: Peers, tensor: str, node: str, message: Append, frames: bytes, seconds: float) -> PeerRequest:
    path = path_of("appendRecords", tensor=tensor)
    return PeerRequest(peers, node, "POST", path, append_pieces(message, frames), seconds)


class Busy:
    """The response of a shard that does not currently have enough memory for a request."""


def _answer(request: PeerRequest) -> AppendAnswer | Busy | None:
    try:
        answer = request.answer()
        if answer.status in (429, 503):
            return Busy()
        return read_append_answer(answer.body) if answer.status == 200 else None
    except (PeerFailed, ValueError):
        return None
