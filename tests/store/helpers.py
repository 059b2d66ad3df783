"""Uploads, lookups and changes in a line each, and what a folder holds."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.catalogue.aliases import AliasMove
from app.catalogue.records import Alias
from app.errors import GatherError
from app.operators.scatters import plan_scatter
from app.store import Conditions, LocalStore, Metadata, Quota
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.scatters.pending_scatter import ContentReplaced, PendingScatter, ScatterChange, Scattered
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import Reduction
from app.tensors.scatter_call import ScatterCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.strings import framed, items
from tests.strings import packed as packed_strings

BY_NUMPY = {row.numpy: row for row in DTYPES.values()}
ALWAYS = Conditions()


def opened(folder: Path, quota: Quota | None = None, **options: Any) -> LocalStore:
    """The store in `folder`, of which this is the first process unless `options` have a token."""
    store = LocalStore(folder, Limits(), quota, **options)
    store.open()
    return store


def reopened(store: LocalStore, folder: Path) -> LocalStore:
    """The store after a restart."""
    store.close()
    return opened(folder)


def packed(texts: list[str]) -> bytes:
    return framed(texts)


def put_alias(store: LocalStore, alias: str, target: str, conditions: Conditions = ALWAYS) -> tuple[Alias, bool]:
    """Make or move one alias: the alias, and whether it is new."""
    (made,) = store.put_aliases([AliasMove(alias, target, conditions)])
    return made


def put(
    store: LocalStore,
    name: str,
    array: NDArray[Any],
    conditions: Conditions = ALWAYS,
    step: int = 1 << 16,
    keep: int | None = None,
    **options: Any,
) -> tuple[Metadata, bool]:
    dtype = BY_NUMPY[array.dtype]
    raw = packed(array.ravel().tolist()) if dtype.kind == "string" else array.tobytes()
    spec = UploadSpec(name, dtype, array.shape, keep=keep, **options)
    return store.put(uploaded(store, spec, raw, step), conditions)


def uploaded(store: LocalStore, spec: UploadSpec, raw: bytes, step: int) -> Upload:
    """A finished upload of these bytes, `step` at a time; where that fails, it is abandoned."""
    upload = store.upload(spec)
    try:
        for start in range(0, len(raw), step):
            upload.write(raw[start : start + step])
        upload.finish()
    except BaseException:
        upload.abandon()
        raise
    return upload


def read(store: LocalStore, name: str) -> NDArray[Any]:
    """A copy of what the store says `name` is."""
    resident = store.get(name)
    assert resident is not None
    tensor = resident.tensor
    found = items(tensor)
    assert resident.is_consistent
    return found.reshape(tensor.shape)


def made(array: NDArray[Any]) -> Tensor:
    """A tensor with the items of an array; strings are those of an array of objects."""
    if array.dtype == object:
        return packed_strings(array.ravel().tolist(), array.shape)
    return Tensor(BY_NUMPY[array.dtype], array.shape, array.ravel())


def call_of(indices: Any, updates: NDArray[Any], reduction: Reduction = "none") -> ScatterCall:
    """A scatter as a request asks for it."""
    where = np.asarray(indices, np.int64)
    return ScatterCall(
        Tensor(DTYPES["int64"], where.shape, where.ravel()),
        made(updates),
        reduction,
    )


def change_of(
    store: LocalStore,
    name: str,
    indices: Any,
    updates: NDArray[Any],
    reduction: Reduction = "none",
    key: str | None = None,
    digest: str = "digest",
) -> ScatterChange:
    """A scatter as the store takes it."""
    content = store.content(name)
    about, call = content.description, call_of(indices, updates, reduction)
    plan = plan_scatter(DTYPES[about.dtype], content.resident().tensor.shape, call)
    return ScatterChange(about.id, plan.rows, call.updates, plan.slice_items, reduction, key, digest)


def scatter_change(store: LocalStore, name: str, change: ScatterChange, conditions: Conditions = ALWAYS) -> Scattered:
    """Carry out a scatter, as its caller's turn comes."""
    turn = Event()
    queued = store.queue_scatter(name, change, conditions, turn.set)
    if not queued.is_leader:
        turn.wait()
    return store.complete_scatter(name, queued)


def scatter(
    store: LocalStore,
    name: str,
    indices: Any,
    updates: NDArray[Any],
    reduction: Reduction = "none",
    key: str | None = None,
    conditions: Conditions = ALWAYS,
    digest: str = "digest",
) -> str:
    change = change_of(store, name, indices, updates, reduction, key, digest)
    return scatter_change(store, name, change, conditions).etag


def answered(store: LocalStore, name: str, key: str, digest: str) -> str | None:
    """The ETag that a scatter with this Idempotency-Key was answered, None if there was none."""
    found = store.find_answer(name, key, digest)
    return None if found is None else found.etag


def scatter_together(store: LocalStore, name: str, batch: list[PendingScatter]) -> list[Any]:
    """What comes of scatters that wait at the same time: an ETag or an error each."""
    afterwards = store.execute_scatters(name, lambda most: batch[:most])
    if afterwards is not None:
        afterwards()
    outcomes: list[Any] = []
    for one in batch:
        assert one.done
        try:
            outcomes.append(one.result().etag)
        except (GatherError, OSError, ContentReplaced) as error:
            outcomes.append(error)
    return outcomes


def strings(*texts: str) -> NDArray[Any]:
    array: NDArray[Any] = np.empty(len(texts), object)
    array[:] = texts
    return array


def files(folder: Path) -> set[str]:
    """The files that are there beside the fixed ones."""
    return {
        str(path.relative_to(folder))
        for part in ("tensors", "logs", "incoming")
        for path in (folder / part).rglob("*")
        if path.is_file()
    }


def flip(path: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
