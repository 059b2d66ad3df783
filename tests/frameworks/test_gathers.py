"""Gathers as OpenVINO and torch compute them: equal bits on random valid requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gathernd import Client
from tests.conftest import samples
from tests.frameworks.conftest import Ask

pytestmark = pytest.mark.soak
TYPES = ("float32", "float64", "int32", "int64", "int8", "uint8", "float16")
Array = np.ndarray[Any, Any]


def shape_of(rng: np.random.Generator, rank: int, least: int = 1) -> tuple[int, ...]:
    return tuple(int(size) for size in rng.integers(least, 5, rank))


def items(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 100, shape).astype(rng.choice(TYPES))


def gathernd_request(rng: np.random.Generator, *, negative: bool) -> tuple[Array, Array, int]:
    """Data, indices and batch_dims of a valid request."""
    rank = int(rng.integers(1, 6))
    shape = shape_of(rng, rank)
    batch = int(rng.integers(0, rank))
    depth = int(rng.integers(1, rank - batch + 1))
    inner = shape_of(rng, int(rng.integers(0, 3)), 0)
    columns = [
        rng.integers(-size if negative else 0, size, (*shape[:batch], *inner)) for size in shape[batch : batch + depth]
    ]
    return items(rng, shape), np.stack(columns, -1), batch


def gather_request(rng: np.random.Generator, *, batches: bool, outside: bool = False) -> tuple[Array, Array, int, int]:
    """Data, indices, axis and batch_dims of a valid request; with `outside` indices may be out of bounds."""
    rank = int(rng.integers(1, 5))
    shape = shape_of(rng, rank)
    axis = int(rng.integers(0, rank))
    batch = int(rng.integers(0, axis + 1)) if batches else 0
    size, more = shape[axis], 3 if outside else 0
    chosen = (*shape[:batch], *shape_of(rng, int(rng.integers(0, 3)), 0))
    return items(rng, shape), rng.integers(-more * size, (1 + more) * size, chosen), axis, batch


def check(found: Any, wanted: Any, request: object) -> None:
    assert not isinstance(wanted, str), (wanted, request)
    assert found.shape == wanted.shape, request
    assert np.array_equal(found, wanted), request


@pytest.mark.parametrize("dialect", ["onnx-13", "openvino-8"])
def test_gathernd(dialect: str, service: Client, ask: Ask) -> None:
    rng = np.random.default_rng(1)
    for _ in range(samples(20)):
        data, indices, batch_dims = gathernd_request(rng, negative=False)
        found = service.gathernd(data, indices, batch_dims, dialect=dialect)
        check(found, ask("openvino_gathernd", data, indices, batch_dims), (data.shape, indices.shape, batch_dims))


def test_gather_elements(service: Client, ask: Ask) -> None:
    rng = np.random.default_rng(3)
    for _ in range(samples(20)):
        shape = shape_of(rng, int(rng.integers(1, 5)))
        axis = int(rng.integers(0, len(shape)))
        chosen = [int(rng.integers(1, size + 1)) for size in shape]
        chosen[axis] = int(rng.integers(0, 6))
        data, indices = items(rng, shape), rng.integers(0, shape[axis], chosen)
        found = service.gather_elements(data, indices, axis)
        check(found, ask("torch_gather_elements", data, indices, axis), (shape, chosen, axis))


def test_gather_8_with_batches_and_indices_out_of_bounds(service: Client, ask: Ask) -> None:
    """Negative indices count from the end, and what is out of bounds gives zeros.

    OpenVINO 2026.4 reads other memory for indices out of bounds of data of rank 1, and is not asked for those.
    """
    rng = np.random.default_rng(5)
    for _ in range(samples(20)):
        data, indices, axis, batch_dims = gather_request(rng, batches=True, outside=True)
        if data.ndim == 1:
            indices = indices % data.shape[0] - data.shape[0]
        found = service.gather(data, indices, axis, batch_dims=batch_dims, dialect="openvino-8")
        wanted = ask("openvino_gather", data, indices, axis, batch_dims)
        check(found, wanted, (data.shape, indices, axis, batch_dims))
