"""Scatters through the clients: a copy of the data with updates, and a resident tensor that is changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gathernd import Result, errors
from tests.client.test_gathers import same, sample
from tests.for_each import for_each

TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)
ROWS = np.arange(60, dtype=np.float32).reshape(12, 5)
_numbers = itertools.count()


def test_scatternd_replaces_and_reduces(service: Any) -> None:
    updates = np.array([[7, 8], [9, 10]], np.float32)
    expected = TABLE.copy()
    expected[[2, 0]] = updates
    assert np.array_equal(service.scatternd(TABLE, [[-1], [0]], updates), expected)
    found = service.scatternd(TABLE, [[1], [1]], updates, reduction="add")
    assert found.dtype == np.float32
    assert found.tolist() == [[0, 1], [18, 21], [4, 5]]
    assert service.scatternd(TABLE, np.array([[1, 0]], np.int32), [9.0], dialect="onnx-11")[1, 0] == 9


def test_scatter_elements_takes_an_axis(service: Any) -> None:
    indices, updates = np.array([[1], [0], [-1]]), np.array([[10], [20], [30]], np.float32)
    expected = TABLE.copy()
    np.put_along_axis(expected, indices % 2, updates, 1)
    assert np.array_equal(service.scatter_elements(TABLE, indices, updates, 1), expected)
    assert service.scatter_elements(TABLE, indices, updates, axis=-1, reduction="max").tolist() == [
        [0, 10], [20, 3], [4, 30],
    ]  # fmt: skip


@for_each("dtype", ["complex128", "<U3"])
def test_types_that_safetensors_lacks_go_as_json(service: Any, dtype: str) -> None:
    data = np.array(["1", "2", "3"]).astype(dtype)
    found = service.scatternd(data, [[1]], np.array(["7"]).astype(dtype))
    assert found.tolist() == [data[0], np.array("7").astype(dtype).item(), data[2]]


def test_a_resident_tensor_stays_as_it_is(service: Any) -> None:
    etag = service.put("scatter_source", TABLE).etag
    try:
        found = service.scatternd("scatter_source", [[0]], [[5.0, 6.0]], with_info=True)
        assert isinstance(found, Result)
        assert (found.array[0].tolist(), found.etag, found.device) == ([5, 6], etag, "cpu")
        assert service.scatter_elements("scatter_source", [[2]], np.array([[1]], np.float32))[2, 0] == 1
        assert np.array_equal(service.get("scatter_source"), TABLE)
    finally:
        service.delete("scatter_source")


@pytest.fixture
def name(service: Any) -> Iterator[str]:
    """A name that is free, and free again afterwards."""
    made = f"s{next(_numbers)}"
    yield made
    if made in {info.name for info in service.tensors()}:
        service.delete(made)


@for_each("dtype", ["int32", "float32", "complex128", "string", "bool"])
def test_a_scatter_changes_what_it_names(service: Any, name: str, dtype: str) -> None:
    data = sample(dtype, (4, 3))
    before = service.put(name, data)
    updates = sample(dtype, (9, 3))[-2:]
    etag = service.scatter(name, [[3], [0]], updates)
    assert etag not in (before.etag, None)
    assert service.metadata(name).etag == etag
    data = data.copy()
    data[[3, 0]] = updates
    assert same(service.get(name), data)


def test_a_scatter_reduces_and_is_done_once_for_each_key(service: Any, name: str) -> None:
    service.put(name, ROWS)
    etag = service.scatter(name, [[1], [1]], ROWS[:2], "add", idempotency_key="once")
    assert service.scatter(name, [[1], [1]], ROWS[:2], "add", idempotency_key="once") == etag
    expected = ROWS.copy()
    expected[1] += ROWS[0] + ROWS[1]
    assert same(service.get(name), expected)
    service.scatter(name, np.array([[1]], np.int32), np.zeros((1, 5), np.float32), "max")
    assert same(service.get(name), expected)
    with pytest.raises(errors.PreconditionFailed):
        service.scatter(name, [[0]], ROWS[:1], if_match=etag)
    with pytest.raises(errors.TensorNotFound):
        service.scatter("nobody", [[0]], ROWS[:1])
