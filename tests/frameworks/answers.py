"""Answers of other implementations: reads questions from standard input and writes an answer for each.

Runs in the environment .venv-frameworks, which has torch and OpenVINO. A question is the pickle of a
function's name and its arguments; its answer is the pickle of an array or of several, or the exception as a text.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@cache
def openvino() -> Any:
    import openvino

    return openvino


def _by_openvino(make: Callable[[Any, Any, Any], Any], data: Array, indices: Array, *, fixed: bool) -> Array:
    """`fixed` says whether the model has the shapes of these arrays, or dimensions of any size."""
    ov = openvino()
    opset = ov.opset8
    shapes = [list(each.shape) if fixed else [-1] * each.ndim for each in (data, indices)]
    inputs = [opset.parameter(shape, ov.Type(each.dtype)) for shape, each in zip(shapes, (data, indices), strict=True)]
    model = ov.Model([make(opset, *inputs)], inputs)
    compiled = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([data, indices])[0])  # a copy: the memory of the answer is the compiled model's


def openvino_gathernd(data: Array, indices: Array, batch_dims: int) -> Array:
    return _by_openvino(lambda opset, *inputs: opset.gather_nd(*inputs, batch_dims), data, indices, fixed=True)


def openvino_gather(data: Array, indices: Array, axis: int, batch_dims: int) -> Array:
    def make(opset: Any, *inputs: Any) -> Any:
        return opset.gather(*inputs, opset.constant(axis, dtype=np.int64), batch_dims)

    return _by_openvino(make, data, indices, fixed=False)  # with some fixed shapes it crashes


@cache
def torch() -> Any:
    import torch

    torch.set_num_threads(1)
    return torch


def torch_gather_elements(data: Array, indices: Array, axis: int) -> Array:
    both = torch().from_numpy(data.copy()), torch().from_numpy(indices.copy())
    return np.asarray(torch().gather(both[0], axis, both[1]).numpy())


def torch_scatter_elements(data: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    own, chosen, new = (torch().from_numpy(each.copy()) for each in (data, indices, updates))
    if reduction == "none":
        return np.asarray(own.scatter(axis, chosen, new).numpy())
    reduce = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}[reduction]
    return np.asarray(own.scatter_reduce(axis, chosen, new, reduce, include_self=True).numpy())


def torch_gathernd_gradient(shape: tuple[int, ...], indices: Array, grad_output: Array, batch_dims: int = 0) -> Array:
    """By indexing, which takes negative indices too; batches are further columns of indices."""
    lead, ones = indices.shape[:-1], [1] * (indices.ndim - 1 - batch_dims)
    columns = [
        np.broadcast_to(np.arange(size).reshape([-1 if at == axis else 1 for at in range(batch_dims)] + ones), lead)
        for axis, size in enumerate(shape[:batch_dims])
    ]
    columns += list(np.moveaxis(indices, -1, 0))
    chosen = tuple(torch().from_numpy(np.array(column)) for column in columns)
    return _by_autograd(shape, grad_output, lambda data: data[chosen])


def torch_gather_gradient(shape: tuple[int, ...], indices: Array, grad_output: Array, axis: int) -> Array:
    chosen = (*(slice(None),) * axis, torch().from_numpy(indices.copy()))
    return _by_autograd(shape, grad_output, lambda data: data[chosen])


def _by_autograd(shape: tuple[int, ...], grad_output: Array, gather: Callable[[Any], Any]) -> Array:
    back = torch().from_numpy(grad_output.copy())
    data = torch().zeros(shape, dtype=back.dtype, requires_grad=True)
    gather(data).backward(back)
    return np.asarray(data.grad.numpy())


def torch_embedding_gradient(shape: tuple[int, ...], indices: Array, grad_output: Array) -> tuple[Array, Array]:
    """Ids and rows of the sparse gradient of an embedding."""
    back = torch().from_numpy(grad_output.copy())
    table = torch().zeros(shape, dtype=back.dtype, requires_grad=True)
    torch().nn.functional.embedding(torch().from_numpy(indices.copy()), table, sparse=True).backward(back)
    found = table.grad.coalesce()
    return found.indices()[0].numpy(), found.values().numpy()


def torch_embedding_bag(table: Array, indices: Array, offsets: Array, pooling: str, weights: Array | None) -> Array:
    given = None if weights is None else torch().from_numpy(weights.copy())
    own, chosen, starts = (torch().from_numpy(each.copy()) for each in (table, indices, offsets))
    bags = torch().nn.functional.embedding_bag(chosen, own, starts, mode=pooling, per_sample_weights=given)
    return np.asarray(bags.numpy())


def main() -> None:
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what libraries print must not come between the answers
    while True:
        try:
            name, arguments = pickle.load(questions)
        except EOFError:
            return
        try:
            answer: Any = globals()[name](*arguments)
        except Exception as error:  # noqa: BLE001  (whatever a library raises is what it answers)
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
