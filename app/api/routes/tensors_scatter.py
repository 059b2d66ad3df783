"""`POST /tensors/{name}/scatter`: from the bytes of a request to a durable change and its ETag."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from threading import Event
from typing import Final

from app.errors import GatherError
from app.operators.scatternd import plan_scatter
from app.store import Conditions, LocalStore
from app.store.group_commit import QueuedScatter
from app.store.pending_scatter import ContentReplaced, ScatterChange
from app.tensors.buffer import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.packed_strings import PackedStrings
from app.tensors.scatter_call import ScatterCall
from app.tensors.shape_limits import Limits
from app.wire.body_formats import ScatterCodec
from app.wire.packed_items import Charge

_KEY: Final = re.compile(r"[\x21-\x7e]{1,256}")
_ATTEMPTS: Final = 8
_ROW_BYTES: Final = 64


def read_key(field: bytes | None) -> str | None:
    """The Idempotency-Key. Raises invalid_field."""
    if field is None:
        return None
    text = field.decode("latin-1").strip()
    if not _KEY.fullmatch(text):
        raise GatherError(
            "invalid_field",
            "an Idempotency-Key is 1 to 256 visible ASCII characters",
            pointer="/idempotency-key",
        )
    return text


class Scattering:
    """One request, which is carried out with others that wait for the same tensor; `wake` is called from any thread.

    A request that was answered before, by its key, is answered again and not carried out again, whatever has become of
    the tensor since.
    """

    def __init__(
        self,
        store: LocalStore,
        name: str,
        call: ScatterCall,
        conditions: Conditions,
        key: str | None,
        digest: str,
        wake: Callable[[], None],
    ) -> None:
        """`digest` tells the request from others with the same key."""
        self._store, self._name, self._call, self._conditions = store, name, call, conditions
        self._key, self._digest, self._wake = key, digest, wake
        self._attempts = _ATTEMPTS
        self._place: QueuedScatter | None = None

    def go_on(self) -> str | None:
        """The ETag; None where others are carried out first: call again once `wake` was called. Blocks on the disk.

        Raises every error of the routes.
        """
        try:
            while self._place is not None or self._attempts:
                if self._place is None:
                    self._attempts -= 1
                    change = self._change()
                    self._place = self._store.queue_scatter(self._name, change, self._conditions, self._wake)
                    if not self._place.is_leader:
                        return None
                try:
                    return self._store.complete_scatter(self._place)
                except ContentReplaced:
                    self._place = None
        except GatherError:
            # The tensor may be another one by now, which the request does not fit: a key that is known still counts.
            answered = None
            if self._key is not None:
                answered = self._store.find_answer(self._name, self._key, self._digest)
            if answered is None:
                raise
            return answered
        raise GatherError("overloaded", f"{self._name!r} is being replaced again and again", retry_after=1)

    def settled(self) -> str | None:
        """The ETag if others have carried this one out; None where `go_on` is needed."""
        return None if self._place is None else self._place.one.etag

    def _change(self) -> ScatterChange:
        about, call = self._store.content(self._name).description, self._call
        plan = plan_scatter(DTYPES[about.dtype], about.shape, call)
        return ScatterChange(
            about.id, plan.rows, call.updates, plan.slice_items, call.reduction, self._key, self._digest
        )


def read_request(
    body: Buffer, query: bytes, *, codec: ScatterCodec, key: str | None, limits: Limits, charge: Charge
) -> tuple[ScatterCall, str]:
    """What a body asks for, and the digest that tells it from other requests with the same key.

    `charge` is told what the request takes beside `body`, in bytes, before it does; what that raises is raised, as is
    every error of the two formats.
    """
    digest = ""
    if key is not None:
        hashed = hashlib.sha256(b"%d?%b\n" % (codec.binary, query))
        hashed.update(body)
        digest = hashed.hexdigest()
    call = codec.read(body, query, limits, charge)
    charge(working_bytes(call))
    return call, digest


def working_bytes(call: ScatterCall) -> int:
    """About what a scatter takes beside its call: its rows while they are worked out and put in order, the values that
    it writes, and the record of both in the log.
    """
    indices, updates = call.indices.array, call.updates.array
    values = updates.nbytes
    if isinstance(call.updates, PackedStrings):
        values += call.updates.size
    depth = call.indices.shape[-1] if call.indices.shape else 1
    return _ROW_BYTES * (indices.size // max(depth, 1)) + 3 * values


def carry_out(
    store: LocalStore, name: str, call: ScatterCall, conditions: Conditions, key: str | None, digest: str
) -> str:
    """The ETag after a request; blocks until it is carried out. Raises every error of the routes."""
    turn = Event()
    scattering = Scattering(store, name, call, conditions, key, digest, turn.set)
    while (etag := scattering.go_on()) is None:
        turn.wait()
        turn.clear()
    return etag
