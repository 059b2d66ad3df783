"""Decide who may read an open range, based on the rules in `app.cluster.replication.reads`.

Closed ranges are served whether or not etcd responds; for them, the check costs only two comparisons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import Final

from app.api.asgi_request import Handler, RequestContext
from app.cluster.catalogue.ranges import PROPOSED
from app.cluster.replication.reads import WAIT_S, Read, Readable, judge_read
from app.cluster.shard.catalogue_follower import CatalogueFollower
from app.errors import GatherError
from app.store import LocalStore, Resident
from app.store.files.mapped_tensor import MappedContent
from app.store.files.tensor_file import HeaderWord, is_settled

_LOOK_S: Final = 0.002
_DIGITS: Final = 18
_BEFORE: Final = float("-inf")
_WHY: Final = {
    Read.NOT_IN_SYNC: "it is not in sync",
    Read.CUT_OFF: "etcd does not answer, so it may no longer be in sync",
    Read.UNSETTLED: "it does not know yet which records are committed",
}


class ReadGate:
    """Decide on reads on the shard `node`."""

    def __init__(self, node: str, follower: CatalogueFollower) -> None:
        self._node = node
        self._follower = follower
        self._tails: dict[str, tuple[int, float]] = {}
        """For ranges with a tail, the applied sequence and the earliest time at which the tail can have arrived."""
        self._looked = _BEFORE

    def is_open(self, tensor: str) -> bool:
        """Return whether a range is open, according to the newest known catalogue."""
        return tensor in self._follower.catalogue.ranges

    def check(self, tensor: str, words: Sequence[int], *, is_confirmed: bool) -> None:
        """Raise precondition_failed unless this shard may serve the range. The reader then tries another replica.

        `words` is the header of the range's content. `is_confirmed` says whether, since the startup, the primary has
        reported what is committed.
        """
        record = self._follower.catalogue.ranges.get(tensor)
        applied = words[HeaderWord.VERSION] >> 1
        known = self._tails.get(tensor)
        since = known[1] if known is not None and known[0] == applied and words[HeaderWord.LOGGED] > applied else None
        # Nothing is acknowledged before a primary has begun. The header counts too, because the catalogue may have been
        # restored to a state from before that.
        has_begun = words[HeaderWord.EPOCH] or (record is not None and record.epoch > PROPOSED)
        if not is_settled(words) or (has_begun and not is_confirmed):
            since = _BEFORE
        readable = Readable(
            record is not None and self._node in record.in_sync,
            self._follower.confirmed_at,
            applied,
            since,
        )
        verdict = judge_read(readable, monotonic())
        if verdict is not Read.SERVED:
            raise _refusal(f"this shard does not serve {tensor}: {_WHY[verdict]}")

    def note_tails(self, store: GatedStore) -> None:
        """Record which ranges have a tail. Call this every few seconds; a new tail is dated to the previous call."""
        now, before = monotonic(), self._looked
        for tensor in self._follower.open_ranges():
            try:
                words = store.ungated_content(tensor).words
            except GatherError:
                continue
            applied = words[HeaderWord.VERSION] >> 1
            if words[HeaderWord.LOGGED] <= applied:
                self._tails.pop(tensor, None)
            elif self._tails.get(tensor, (-1, 0.0))[0] != applied:
                self._tails[tensor] = applied, before
        for tensor in self._tails.keys() - self._follower.open_ranges().keys():
            self._tails.pop(tensor)
        self._looked = now


class GatedStore(LocalStore):
    """The store of a shard. Once `gate` is set, it decides whether replicated data may be read."""

    gate: ReadGate | None = None

    def get(self, reference: str) -> Resident | None:
        resident = super().get(reference)
        if resident is not None:
            self._check(reference, resident.words)
        return resident

    def get_all(self, references: Sequence[str]) -> list[Resident | None]:
        found = super().get_all(references)
        for reference, resident in zip(references, found, strict=False):
            if resident is not None:
                self._check(reference, resident.words)
        return found

    def content(self, reference: str) -> MappedContent:
        found = super().content(reference)
        self._check(reference, found.words)
        return found

    def ungated_content(self, reference: str) -> MappedContent:
        """Return the content as `content` does, even if it may not be served."""
        return super().content(reference)

    def _check(self, reference: str, words: Sequence[int]) -> None:
        gate = self.gate
        if gate is not None and (words[HeaderWord.EPOCH] or gate.is_open(reference)):
            gate.check(reference.partition("@")[0], words, is_confirmed=self.replicated.is_confirmed(words))


def wait_for_sequence(store: GatedStore, handler: Handler, field: bytes) -> Handler:
    """Wrap `handler` so that it first waits until a tensor has reached the sequence in `field`.

    If this takes longer than WAIT_S seconds, the request is refused with precondition_failed. The tensor is the one in
    the path or, if the path has none, the one at the start of the query. Raises invalid_field.
    """
    if not field.isdigit() or len(field) > _DIGITS:
        raise GatherError("invalid_field", "X-Gathernd-Sequence must be a number", pointer="/x-gathernd-sequence")
    least = int(field)

    async def waiting(context: RequestContext) -> None:
        tensor = context.parameters[0] if context.parameters else _tensor_in_query(context.query)
        end = perf_counter() + WAIT_S
        while (resident := store.get(tensor)) is not None and resident.version >> 1 < least:
            if perf_counter() > end:
                raise _refusal(f"this shard's copy of {tensor} is at {resident.version >> 1}, before {least}")
            await asyncio.sleep(_LOOK_S)
        await handler(context)

    return waiting


def _tensor_in_query(query: bytes) -> str:
    """Return the tensor in the first field of a query, in the form that routers write."""
    return query.partition(b"&")[0].removeprefix(b"tensor=").decode("latin-1")


def _refusal(detail: str) -> GatherError:
    return GatherError("precondition_failed", detail, hint="Read the catalogue again, and try another replica.")
