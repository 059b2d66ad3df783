"""Explanations of calls of which there are only types and shapes: the decision of the service, by the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from app.api.schemas.explain_answer import explanation_body
from app.errors import GatherError
from app.memory.budget import MemoryReservation
from app.operators.registry import GRADIENTS, OPERATORS
from app.services.service import Service
from app.store import EmptyStore, Resident
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import Call, Device
from app.tensors.lookup_call import Feature, LookupCall, Pooling
from app.tensors.operator_signature import BackwardName, OperatorName, Reduction, Signature
from app.tensors.tensor import Tensor

Shape = tuple[int, ...]


class Asked(NamedTuple):
    """A call by its shapes: `batch_dims` is the one beside an axis, `inputs` are those beside data and indices."""

    data_shape: Shape
    indices_shape: Shape
    data_dtype: str
    indices_dtype: str
    parameters: tuple[int, ...]
    batch_dims: int
    dialect: str
    device: Device
    inputs: Mapping[str, tuple[str, Shape]]


class AskedFeature(NamedTuple):
    """A feature by its shapes; without `bags` it is not pooled."""

    table: Shape
    indices: Shape
    bags: int | None


def explained_call(service: Service, op: OperatorName, asked: Asked, reduction: str, on_device: bool) -> dict[str, Any]:
    """What the service says of a gather or a scatter. Raises what it raises."""
    signature = OPERATORS[op].signature
    call, data = _call(signature, asked)
    if signature.kind == "scatter":
        call.further = {"updates": _updates(signature, data, call.indices)}
        call.reduction = cast(Reduction, reduction)
    return explanation_body(service.explain(call, MemoryReservation(service.budget), on_device=on_device))


def explained_backward(service: Service, op: BackwardName, asked: Asked, sparse: bool) -> dict[str, Any]:
    """What the service says of a gradient, whose `grad_output` has the shape that it must have.

    Raises what the service raises.
    """
    row = GRADIENTS[op]
    dialect = row.dialects[asked.dialect]
    gather = OPERATORS[row.gather]
    call, data = _call(gather.signature, asked)
    try:
        _, shape, _ = gather.plan(dialect, call, data, {})
    except GatherError:
        shape = ()  # what is wrong comes before the shape of grad_output
    backward = BackwardCall(
        op,
        call.indices,
        _without_items(data.dtype, shape, "/grad_output"),
        asked.data_shape,
        asked.parameters,
        1.0,
        sparse,
        asked.dialect,
        asked.device,
        batch_dims=asked.batch_dims,
    )
    return explanation_body(service.explain(backward, MemoryReservation(service.budget)))


class _TablesByShape(EmptyStore):
    """A store with a tensor of every shape, under the shape as a name."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype

    def get(self, reference: str) -> Resident:
        """The tensor of the shape that a text such as 200000,64 gives."""
        shape = tuple(int(size) for size in reference.split(",") if size)
        return Resident(_without_items(self._dtype, shape, ""), "")


def explained_lookup(
    service: Service,
    features: Sequence[AskedFeature],
    data_dtype: str,
    indices_dtype: str,
    pooling: Pooling,
    concat: bool,
) -> dict[str, Any]:
    """What the service says of a lookup. Features with bags are pooled. Raises what the service raises."""
    service.store = _TablesByShape(DTYPES[data_dtype])
    indices = DTYPES[indices_dtype]
    call = LookupCall(
        [
            Feature(
                ",".join(map(str, one.table)),
                _without_items(indices, one.indices, f"/features/{number}/indices"),
                None if one.bags is None else _without_items(indices, (one.bags,), f"/features/{number}/offsets"),
                pooling="none" if one.bags is None else pooling,
                pointer=f"/features/{number}",
            )
            for number, one in enumerate(features)
        ],
        concat,
    )
    body = explanation_body(service.explain(call, MemoryReservation(service.budget)))
    del body["features"]  # the ETags of what would be read
    return body


def _call(signature: Signature, asked: Asked) -> tuple[Call, Tensor]:
    """The call, and its data."""
    data = _without_items(DTYPES[asked.data_dtype], asked.data_shape, "/data")
    indices = _without_items(DTYPES[asked.indices_dtype], asked.indices_shape, "/indices")
    call = Call(
        cast(OperatorName, signature.operator),
        data,
        indices,
        asked.parameters,
        asked.dialect,
        asked.device,
        further={
            name: _without_items(DTYPES[dtype], shape, f"/{name}") for name, (dtype, shape) in asked.inputs.items()
        },
        batch_dims=asked.batch_dims,
    )
    return call, data


def _updates(signature: Signature, data: Tensor, indices: Tensor) -> Tensor:
    """Updates of the shape that they must have."""
    shape = indices.shape
    if signature.operator == "scatternd":
        shape = (*shape[:-1], *data.shape[shape[-1] :]) if shape else ()
    return _without_items(data.dtype, shape, "/updates")


def _without_items(dtype: DType, shape: Shape, pointer: str) -> Tensor:
    """A tensor of which types and shapes alone are looked at."""
    return Tensor(dtype, shape, np.empty(0, dtype.numpy), shape_pointer=pointer, dtype_pointer=pointer)
