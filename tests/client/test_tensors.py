"""Resident tensors through the client against a running server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gathernd import TensorInfo, errors
from tests.client.test_gathers import TYPES, same, sample
from tests.for_each import for_each

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)
_numbers = itertools.count()


@pytest.fixture
def name(service: Any) -> Iterator[str]:
    """A name that is free, and free again afterwards."""
    made = f"t{next(_numbers)}.of-test_X"
    yield made
    if made in {info.name for info in service.tensors()}:
        service.delete(made)


@for_each("dtype", TYPES)
def test_every_type_is_kept_bit_by_bit_and_gathered_from(service: Any, name: str, dtype: str) -> None:
    data = sample(dtype, (4, 3, 2))
    info = service.put(name, data)
    assert (info.name, info.dtype, info.shape) == (name, dtype, (4, 3, 2))
    assert dtype == "string" or info.bytes == data.nbytes
    assert same(service.get(name), data)
    assert same(service.get(name, rows=(1, 3)), data[1:3])
    indices = np.array([[3, 2], [-1, 0]])
    assert same(service.gathernd(name, indices), data[tuple(indices.T)])
    assert same(service.gathernd(name, [[[0]], [[1]], [[2]], [[-3]]], 1), data[range(4), [0, 1, 2, 0]][:, None])
    assert same(service.gather(name, [[1]], 1), data[:, [[1]]])


@for_each("shape", [(), (0,), (3, 0, 2), (1,)])
def test_scalars_and_empty_tensors_are_kept(service: Any, name: str, shape: tuple[int, ...]) -> None:
    data = np.ones(shape, np.int16)
    assert service.put(name, data).shape == shape
    assert same(service.get(name), data)


def test_metadata_tells_what_is_there(service: Any, name: str) -> None:
    first = service.put(name, TABLE)
    assert isinstance(first, TensorInfo)
    assert first.bytes == TABLE.nbytes
    assert first.etag.startswith('"')
    assert first.created <= first.modified
    assert service.metadata(name) == first
    second = service.put(name, np.asfortranarray(TABLE))
    assert (second.sha256, second.etag != first.etag) == (first.sha256, True)
    assert service.put(name, TABLE + 1).sha256 != first.sha256


def test_prefault_and_lock_are_asked_for(service: Any, name: str) -> None:
    info = service.put(name, TABLE)
    assert (info.prefault, info.lock) == (False, False)
    assert (service.put(name, TABLE, prefault=True).prefault, service.metadata(name).prefault) == (True, True)
    info = service.put(name, TABLE, lock=True)
    assert (info.prefault, info.lock) == (False, True)
    assert same(service.gathernd(name, [[1]]), TABLE[[1]])


def test_conditions_are_kept(service: Any, name: str) -> None:
    first = service.put(name, TABLE, if_none_match="*")
    with pytest.raises(errors.PreconditionFailed):
        service.put(name, TABLE + 1, if_none_match="*")
    second = service.put(name, TABLE + 1, if_match=first.etag)
    with pytest.raises(errors.PreconditionFailed):
        service.put(name, TABLE + 2, if_match=first.etag)
    with pytest.raises(errors.PreconditionFailed):
        service.delete(name, if_match=first.etag)
    with pytest.raises(errors.PreconditionFailed):
        service.get(name, rows=(0, 1), if_match=first.etag)
    assert same(service.get(name, if_match=second.etag), TABLE + 1)
    service.delete(name, if_match=second.etag)
    with pytest.raises(errors.TensorNotFound):
        service.metadata(name)


@for_each("rows", [(5, 2), (0, 13)])
def test_rows_that_are_not_there_are_refused(service: Any, name: str, rows: tuple[int, int]) -> None:
    service.put(name, TABLE)
    with pytest.raises(errors.RangeNotSatisfiable):
        service.get(name, rows=rows)
    assert service.get(name, rows=(12, 12)).shape == (0, 5)


def test_rows_are_a_pair_or_a_slice_of_two_integers(service: Any, name: str) -> None:
    service.put(name, TABLE)
    for rows in ((2, 5), [2, 5], np.array([2, 5]), slice(2, 5), slice(np.int64(2), 5, 1)):
        assert same(service.get(name, rows=rows), TABLE[2:5]), rows
    assert same(service.get(name, rows=slice(3)), TABLE[:3])
    for wrong in (3, (1,), (1, 2, 3), (1.0, 2.0), "12", slice(1, None), slice(0, 4, 2), slice(None)):
        with pytest.raises(TypeError, match=r"rows are two integers \(a, b\), or slice\(a, b\), not "):
            service.get(name, rows=wrong)


def test_the_list_comes_in_pages(each_service: Any) -> None:
    names = [f"page-{number}" for number in range(5)]
    for each in names:
        each_service.put(each, TABLE)
    found = [info.name for info in each_service.tensors(page=2)]
    assert [each for each in found if each in names] == names
    for each in names:
        each_service.delete(each)
    assert not set(names) & {info.name for info in each_service.tensors()}


def test_progress_is_told_and_a_memory_mapped_file_is_sent_as_it_is(each_service: Any, tmp_path: Path) -> None:
    service, name = each_service, "progress"
    data = np.random.default_rng(4).random((1024, 400))
    np.save(tmp_path / "data.npy", data)
    sent: list[int] = []
    service.put(name, np.load(tmp_path / "data.npy", mmap_mode="r"), progress=sent.append)
    assert sent == [1 << 20, 2 << 20, 3 << 20, data.nbytes]
    received: list[int] = []
    assert same(service.get(name, progress=received.append), data)
    assert received == sorted(received)
    assert received[-1] == data.nbytes
    service.delete(name)
