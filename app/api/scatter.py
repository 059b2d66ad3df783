"""`POST /tensors/{name}/scatter`: from the bytes of a request to a durable change and its ETag."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from app.errors import GatherError
from app.spec.scatternd import plan_scatter
from app.store import Conditions, LocalStore
from app.store.changes import Change, Replaced
from app.tensors.dtypes import DTYPES
from app.tensors.limits import Limits
from app.tensors.scatter import ScatterCall
from app.tensors.strings import framed_size
from app.wire import native_json
from app.wire.packed import Buffer, Charge
from app.wire.scatter import read_safetensors

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


def scatter(
    store: LocalStore,
    name: str,
    body: Buffer,
    query: bytes,
    *,
    binary: bool,
    conditions: Conditions,
    key: str | None,
    limits: Limits,
    charge: Charge | None = None,
) -> str:
    """Carry out one request; the tensor's new ETag. Blocks on the disk.

    `charge` is told what it takes beside `body`, in bytes, before it does; what that raises is raised.

    A request that was answered before, by its key, is answered again and not carried out again, whatever has become of
    the tensor since. Raises every error of the routes.
    """
    digest = ""
    if key is not None:
        hashed = hashlib.sha256(b"%d?%b\n" % (binary, query))
        hashed.update(body)
        digest = hashed.hexdigest()
    try:
        call = read_safetensors(body, query, charge) if binary else native_json.read_scatter(body, limits, charge)
        if charge is not None:
            charge(working_bytes(call))
        for _ in range(_ATTEMPTS):
            try:
                return store.scatter(name, _change(store, name, call, key, digest), conditions)
            except Replaced:
                continue
    except GatherError:
        # The tensor may be another one by now, which the request does not fit: a key that is known still counts.
        answered = store.remembered(name, key, digest) if key is not None else None
        if answered is None:
            raise
        return answered
    raise GatherError("overloaded", f"{name!r} is being replaced again and again", retry_after=1)


def working_bytes(call: ScatterCall) -> int:
    """About what a scatter takes beside its call: its rows while they are worked out and put in order, the values that
    it writes, and the record of both in the log.
    """
    indices, updates = call.indices.array, call.updates.array
    values = updates.nbytes
    if call.updates.dtype.kind == "string":
        values += sum(map(framed_size, updates))
    depth = call.indices.shape[-1] if call.indices.shape else 1
    return _ROW_BYTES * (indices.size // max(depth, 1)) + 3 * values


def _change(store: LocalStore, name: str, call: ScatterCall, key: str | None, digest: str) -> Change:
    about = store.content(name).description
    plan = plan_scatter(DTYPES[about.dtype], about.shape, call)
    return Change(about.id, plan.rows, call.updates.array, plan.slice_items, call.reduction, key, digest)
