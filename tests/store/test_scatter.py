from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.reference.ops.op_scatternd import _scatter_nd_impl

from app.errors import GatherError
from app.store import Conditions, LocalStore
from app.store.files import disk_writes
from app.store.scatters.pending_scatter import ContentReplaced, PendingScatter, ScatterChange
from app.tensors.dtypes import DTYPES
from app.tensors.operator_signature import REDUCTIONS, Reduction
from tests.for_each import for_each
from tests.store.helpers import (
    answered,
    change_of,
    flip,
    put,
    read,
    reopened,
    scatter,
    scatter_together,
)

NUMBERS = [name for name, row in DTYPES.items() if row.arithmetic]


def random_items(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    items = rng.normal(0, 100, shape)
    items.flat[:: max(1, items.size // 3)] = np.nan
    items.flat[1 :: max(1, items.size // 2)] = np.inf
    return items.astype(dtype)


@for_each("reduction", REDUCTIONS)
@for_each("name", NUMBERS)
def test_every_type_and_reduction_is_as_the_onnx_reference(store: LocalStore, name: str, reduction: Reduction) -> None:
    rng = np.random.default_rng([NUMBERS.index(name), REDUCTIONS.index(reduction)])
    dtype = DTYPES[name].numpy
    for shape, depth in (((7, 5), 1), ((4, 3, 2), 2)):
        data = random_items(rng, dtype, shape)
        indices = np.stack([rng.integers(-size, size, (6, 2)) for size in shape[:depth]], -1)
        updates = random_items(rng, dtype, (6, 2, *shape[depth:]))
        put(store, "x", data)
        scatter(store, "x", indices, updates, reduction)
        with np.errstate(all="ignore"):
            expected = _scatter_nd_impl(data, indices, updates, reduction)  # type: ignore[no-untyped-call]
        found = read(store, "x")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def log_of(folder: Path) -> Path:
    (log,) = (folder / "logs").iterdir()
    return log


def test_a_torn_record_at_the_end_is_dropped(store: LocalStore, folder: Path) -> None:
    put(store, "x", np.arange(4))
    scatter(store, "x", [[0]], np.array([7]), key="k")
    size = log_of(folder).stat().st_size
    scatter(store, "x", [[1]], np.array([8]))
    # As if the power had failed within the second append: neither its record nor its page were written.
    os.truncate(log_of(folder), log_of(folder).stat().st_size - 19)
    path = next((folder / "tensors").iterdir())
    with path.open("r+b") as file:
        file.write((2).to_bytes(8, "little"))
        file.seek(4096 + 8)
        file.write((1).to_bytes(8, "little"))
    assert log_of(folder).stat().st_size > size
    store = reopened(store, folder)
    assert read(store, "x").tolist() == [7, 1, 2, 3]
    assert scatter(store, "x", [[2]], np.array([9])).endswith('-2"')
    assert read(store, "x").tolist() == [7, 1, 9, 3]
    store.close()


def test_a_record_damaged_before_others_damages_the_tensor_and_no_other(store: LocalStore, folder: Path) -> None:
    put(store, "x", np.arange(4))
    put(store, "y", np.arange(4))
    for value in range(3):
        scatter(store, "x", [[0]], np.array([value]), key=f"key-{value}")
    flip(log_of(folder), 17)
    store = reopened(store, folder)
    with pytest.raises(GatherError, match="tensor_damaged"):
        store.get("x")
    with pytest.raises(GatherError, match="tensor_damaged"):
        store.metadata("x")
    assert read(store, "y").tolist() == [0, 1, 2, 3]
    assert [(found.name, found.damaged) for found in store.page(9, None)[0]] == [("x", True), ("y", False)]
    put(store, "x", np.arange(2))
    assert read(store, "x").tolist() == [0, 1]
    store.close()


def test_a_log_that_fills_the_disk_is_emptied_first(
    store: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros(6, np.int64))
    for turn in range(20):
        scatter(store, "x", [[0]], np.array([turn]), key=str(turn))
    room, real = log_of(folder).stat().st_size + 100, os.pwrite

    def small_disk(fd: int, content: Any, offset: int) -> int:
        if offset + len(content) > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, content, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", small_disk)
        assert scatter(store, "x", [[5]], np.array([7])).endswith('-21"')
    assert read(store, "x").tolist() == [19, 0, 0, 0, 0, 7]
    assert scatter(store, "x", [[0]], np.array([3]), key="3").endswith('-4"')


def test_scatters_that_wait_together_share_one_fsync_and_count_one_after_the_other(
    store: LocalStore, other: LocalStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.arange(6))
    scatter(store, "x", [[5]], np.array([50]), key="old")  # the log is there: its folder needs no fsync any more
    etag = store.etag_to_replace("x")
    assert etag is not None
    second = etag.replace('-1"', '-3"')
    replaced = change_of(store, "x", [[0]], np.array([99]))
    batch = [
        PendingScatter(change_of(store, "x", [[0], [1]], np.array([10, 10]), "add", "a")),
        PendingScatter(change_of(store, "x", [[1], [1]], np.array([2, 3]), "mul", "b"), Conditions(match=('"never"',))),
        PendingScatter(change_of(store, "x", [[1], [1]], np.array([2, 3]), "mul", "c")),
        PendingScatter(change_of(store, "x", [[1]], np.array([1]), "add", "old")),
        PendingScatter(change_of(store, "x", [[0]], np.array([3]), "max"), Conditions(match=(second,))),
        PendingScatter(change_of(store, "x", [[5]], np.array([50]), key="old", digest="another")),
        PendingScatter(ScatterChange("another content", replaced.rows, replaced.updates, 1, "none")),
        PendingScatter(change_of(store, "x", [[2]], np.array([7]))),
    ]
    real = disk_writes.fsync
    calls: list[int] = []

    def counted(fd: int) -> None:
        calls.append(fd)
        real(fd)

    monkeypatch.setattr(disk_writes, "fsync", counted)
    outcomes = scatter_together(store, "x", batch)
    assert len(calls) == 1
    assert [one if isinstance(one, str) else getattr(one, "code", type(one)) for one in outcomes] == [
        etag.replace('-1"', '-2"'), "precondition_failed", second, etag, etag.replace('-1"', '-4"'),
        "invalid_field", ContentReplaced, etag.replace('-1"', '-5"'),
    ]  # fmt: skip
    expected = [10, 66, 7, 3, 4, 50]
    assert read(store, "x").tolist() == read(other, "x").tolist() == expected
    assert answered(store, "x", "c", "digest") == answered(other, "x", "c", "digest") == second
    other.close()
    store = reopened(store, folder)
    assert read(store, "x").tolist() == expected
    assert answered(store, "x", "a", "digest") == etag.replace('-1"', '-2"')
    store.close()


def test_a_key_that_comes_twice_at_once_is_carried_out_once(store: LocalStore) -> None:
    put(store, "x", np.arange(3))
    batch = [PendingScatter(change_of(store, "x", [[0]], np.array([5]), "add", "k")) for _ in range(3)]
    first, *others = scatter_together(store, "x", batch)
    assert others == [first, first]
    assert read(store, "x").tolist() == [5, 1, 2]


def test_slices_of_several_widths_wait_together(store: LocalStore) -> None:
    put(store, "x", np.zeros((2, 3), np.int64))
    batch = [
        PendingScatter(change_of(store, "x", [[0]], np.array([[1, 2, 3]]), "add")),
        PendingScatter(change_of(store, "x", [[0, 1]], np.array([5]), "mul")),
        PendingScatter(change_of(store, "x", [[1]], np.array([[7, 7, 7]]))),
        PendingScatter(change_of(store, "x", [[1]], np.array([[1, 1, 1]]), "add")),
        PendingScatter(change_of(store, "x", np.empty((0, 1)), np.empty((0, 3), np.int64), "add")),
    ]
    assert [etag[-3:] for etag in scatter_together(store, "x", batch)] == [f'-{k}"' for k in range(1, 6)]
    assert read(store, "x").tolist() == [[1, 10, 3], [8, 8, 8]]


def test_a_batch_that_the_disk_refuses_changes_nothing_and_what_has_room_is_made_when_it_is_given_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros(4000, np.int64))
    real = os.pwrite

    def small_disk(fd: int, content: Any, offset: int) -> int:
        if offset + len(content) > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, content, offset)

    every, few = np.arange(4000)[:, None], [[1], [2]]
    batch = [
        PendingScatter(change_of(store, "x", few, np.array([1, 1]), "add", "a")),
        PendingScatter(change_of(store, "x", every, np.ones(4000, np.int64), "add", "b")),
        PendingScatter(change_of(store, "x", few, np.array([10, 10]), "add", "c")),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", small_disk)
        with pytest.raises(OSError, match="No space left"):
            scatter_together(store, "x", batch)
        assert not any(one.done for one in batch)
        assert not read(store, "x").any()
        assert not any(answered(store, "x", key, "digest") for key in "abc")
        scatter_together(store, "x", [batch[0], batch[2]])
    assert read(store, "x")[:4].tolist() == [0, 11, 11, 0]


@pytest.mark.parametrize("before", [0, 1])
def test_a_scatter_that_the_disk_refused_is_not_made_later_though_the_log_could_not_be_cut(
    before: int, store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros(10, np.int64))
    for _ in range(before):
        scatter(other, "x", [[0]], np.array([1]))
    read(other, "x")

    def refused(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(disk_writes, "fsync", refused)
        patched.setattr(disk_writes, "truncate", refused)
        with pytest.raises(GatherError, match="insufficient_storage"):
            scatter(store, "x", [[0], [5]], np.array([7, 7]))
        with pytest.raises(GatherError, match="insufficient_storage"):
            scatter(other, "x", [[1]], np.array([8]))
    for each in (other, store):
        scatter(each, "x", [[2]], np.array([2]))
        assert read(each, "x").tolist() == [before, 0, 2, 0, 0, 0, 0, 0, 0, 0]
    assert store.metadata("x").etag.endswith(f'-{before + 2}"')
