"""Gradients as torch's autograd computes them, within 1e-5 in float32 and 1e-12 in float64.

Relative to the sum of the absolute values that are added: of what is left where they cancel out, rounding may be much.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from gathernd import Client, SparseGradient
from tests.conftest import samples
from tests.frameworks.conftest import Ask
from tests.frameworks.test_gathers import gather_request, gathernd_request

pytestmark = pytest.mark.soak
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
Array = np.ndarray[Any, Any]


def gradient_of(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """What comes back from the loss, of sizes far apart."""
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 8, shape)
    return np.asarray(values, rng.choice(list(TOLERANCE)))


class Differences:
    """The largest of each type, which are shown at the end."""

    def __init__(self) -> None:
        self.largest = dict.fromkeys(TOLERANCE, 0.0)

    def check(self, found: Array, wanted: Any, total: Array, request: object) -> None:
        """`total` is the gradient of the absolute values."""
        assert not isinstance(wanted, str), (wanted, request)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), request
        if found.size:
            scale = np.maximum(np.abs(total.astype(np.float64)), 1e-300)
            largest = float((np.abs(found.astype(np.float64) - wanted.astype(np.float64)) / scale).max())
            assert largest <= TOLERANCE[found.dtype.name], request
            self.largest[found.dtype.name] = max(largest, self.largest[found.dtype.name])


def test_gathernd(service: Client, ask: Ask) -> None:
    rng, differences = np.random.default_rng(11), Differences()
    for _ in range(samples(20)):
        data, indices, batch_dims = gathernd_request(rng, negative=True)
        grad_output = gradient_of(rng, indices.shape[:-1] + data.shape[batch_dims + indices.shape[-1] :])
        wanted = ask("torch_gathernd_gradient", data.shape, indices, grad_output, batch_dims)
        options: dict[str, Any] = {"data_shape": data.shape, "batch_dims": batch_dims}
        found = service.gathernd_backward(indices, grad_output, **options)
        total = service.gathernd_backward(indices, np.abs(grad_output), **options)
        differences.check(found, wanted, total, (data.shape, indices, batch_dims))
        if batch_dims == 0:
            step = service.gathernd_backward(indices, grad_output, data_shape=data.shape, sparse=True)
            assert same_bits(step, found)
    sys.stdout.write(f"gathernd: {differences.largest}\n")


def test_gather(service: Client, ask: Ask) -> None:
    rng, differences = np.random.default_rng(12), Differences()
    for _ in range(samples(20)):
        data, indices, axis, _ = gather_request(rng, batches=False)
        grad_output = gradient_of(rng, data.shape[:axis] + indices.shape + data.shape[axis + 1 :])
        wanted = ask("torch_gather_gradient", data.shape, indices, grad_output, axis)
        found = service.gather_backward(indices, grad_output, data_shape=data.shape, axis=axis)
        total = service.gather_backward(indices, np.abs(grad_output), data_shape=data.shape, axis=axis)
        differences.check(found, wanted, total, (data.shape, indices, axis))
    sys.stdout.write(f"gather: {differences.largest}\n")


def test_a_sparse_embedding(service: Client, ask: Ask) -> None:
    rng, differences = np.random.default_rng(13), Differences()
    for _ in range(samples(20)):
        shape = (int(rng.integers(1, 60)), int(rng.integers(1, 9)))
        indices = rng.integers(0, shape[0], int(rng.integers(1, 200)))
        grad_output = gradient_of(rng, (len(indices), shape[1]))
        ids, rows = ask("torch_embedding_gradient", shape, indices, grad_output)
        found = service.gather_backward(indices, grad_output, data_shape=shape, sparse=True)
        total = service.gather_backward(indices, np.abs(grad_output), data_shape=shape, sparse=True)
        assert found.indices.tolist() == ids.tolist()
        differences.check(found.values, rows, total.values, (shape, indices))
    sys.stdout.write(f"sparse embedding: {differences.largest}\n")


def same_bits(sparse: SparseGradient, dense: Array) -> bool:
    """Whether a dense gradient is the sparse one and zeros."""
    made = np.zeros_like(dense)
    made[tuple(sparse.indices.T)] = sparse.values
    return made.tobytes() == dense.tobytes()
