"""Gradients through the client, sync and async, against a running server."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gathernd import SparseGradient, errors
from tests.for_each import for_each

INDICES = np.array([[3], [0], [-1]])
GRADIENT = np.array([[1, 2], [10, 20], [100, 200]], np.float32)
DENSE = [[10, 20], [0, 0], [0, 0], [101, 202]]


@for_each("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dense_and_sparse_of_each_float_type(service: Any, dtype: Any) -> None:
    gradient = GRADIENT.astype(dtype)
    found = service.gathernd_backward(INDICES, gradient, data_shape=(4, 2))
    assert (found.dtype, found.tolist()) == (dtype, DENSE)
    found = service.gathernd_backward(INDICES, gradient, data_shape=[4, 2], lda_coeff=0.5, sparse=True)
    assert isinstance(found, SparseGradient)
    assert (found.indices.dtype, found.indices.tolist()) == (np.int64, [[0], [3]])
    assert (found.values.dtype, found.values.tolist()) == (dtype, [[5, 10], [50.5, 101]])
    found = service.gather_backward(INDICES[:, 0], gradient, data_shape=(4, 2), sparse=True)
    assert (found.indices.tolist(), found.values.tolist()) == ([0, 3], [[10, 20], [101, 202]])


def test_every_parameter_reaches_the_service(service: Any) -> None:
    found = service.gathernd_backward([[[0], [0]], [[1], [-1]]], np.ones((2, 2)), data_shape=(2, 3), batch_dims=1)
    assert found.tolist() == [[2, 0, 0], [0, 1, 1]]
    gather_8 = {"axis": 1, "batch_dims": 1, "dialect": "openvino-8", "data_shape": (2, 3)}
    gradient = np.array([[1, 2], [4, 8]], np.float32)
    assert service.gather_backward([[1, 1], [-1, 9]], gradient, **gather_8).tolist() == [[0, 3, 0], [0, 0, 4]]


def test_a_step_of_training_a_resident_table(service: Any) -> None:
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    service.put("trained", table)
    try:
        step = service.gathernd_backward(INDICES, GRADIENT, tensor="trained", lda_coeff=-1, sparse=True)
        service.scatter("trained", step.indices, step.values, "add")
        assert service.get("trained").tolist() == (table - np.array(DENSE, np.float32)).tolist()
        with pytest.raises(errors.UnsupportedDtype):
            service.gathernd_backward(INDICES, GRADIENT.astype(np.float64), tensor="trained")
        found = service.gathernd_backward(INDICES, GRADIENT.tolist(), tensor="trained")
        assert (found.dtype, found.tolist()) == (np.float32, DENSE)
        found = service.gather_backward(INDICES[:, 0], GRADIENT.tolist(), tensor="trained")
        assert (found.dtype, found.tolist()) == (np.float32, DENSE)
    finally:
        service.delete("trained")


def test_what_is_refused(service: Any) -> None:
    with pytest.raises(ValueError, match="data_shape"):
        service.gathernd_backward(INDICES, GRADIENT)
    with pytest.raises(ValueError, match="data_shape"):
        service.gathernd_backward(INDICES, GRADIENT, data_shape=(4, 2), tensor="items")
    with pytest.raises(ValueError, match="name of a resident tensor"):
        service.gathernd_backward(INDICES, GRADIENT, tensor="/items")
    for size in (3.7, "3"):
        with pytest.raises(TypeError):
            service.gathernd_backward(INDICES, GRADIENT, data_shape=(size, 2))
    with pytest.raises(TypeError, match="no gradient"):
        service.gathernd_backward(INDICES, GRADIENT.astype(np.complex128), data_shape=(4, 2))
