"""Scatters through the client into a resident tensor of a running server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gathernd import errors
from tests.client.test_gathers import same, sample

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)
_numbers = itertools.count()


@pytest.fixture
def name(service: Any) -> Iterator[str]:
    """A name that is free, and free again afterwards."""
    made = f"s{next(_numbers)}"
    yield made
    if made in {info.name for info in service.tensors()}:
        service.delete(made)


@pytest.mark.parametrize("dtype", ["int32", "float32", "complex128", "string", "bool"])
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
    service.put(name, TABLE)
    etag = service.scatter(name, [[1], [1]], TABLE[:2], "add", idempotency_key="once")
    assert service.scatter(name, [[1], [1]], TABLE[:2], "add", idempotency_key="once") == etag
    expected = TABLE.copy()
    expected[1] += TABLE[0] + TABLE[1]
    assert same(service.get(name), expected)
    service.scatter(name, np.array([[1]], np.int32), np.zeros((1, 5), np.float32), "max")
    assert same(service.get(name), expected)
    with pytest.raises(errors.PreconditionFailed):
        service.scatter(name, [[0]], TABLE[:1], if_match=etag)
    with pytest.raises(errors.UpdatesShapeMismatch):
        service.scatter(name, [[0]], TABLE[:1, :2])
    with pytest.raises(errors.IndexOutOfBounds):
        service.scatter(name, [[12]], TABLE[:1])
    with pytest.raises(errors.TensorNotFound):
        service.scatter("nobody", [[0]], TABLE[:1])
