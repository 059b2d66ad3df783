"""Models of requests to an operator or for a gradient, and of changes to a resident tensor.

The model of an operator or gradient is built from its kind and its signature.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import Field, create_model

from app.errors import invalid_field
from app.requests.schemas.common_fields import (
    KEY_MEMBERS,
    KEYS_DESCRIPTION,
    Combined,
    OutputEncoding,
    dialect_field,
    dialect_fields,
    parameter_note,
)
from app.requests.schemas.gather_request import GatherRequest, GivenData, Tensor, parameter_field
from app.requests.schemas.member_types import (
    ABSENT,
    SIZES,
    JsonBool,
    JsonFinite,
    RequestModel,
    Shape,
    TensorName,
)
from app.tensors.by_key import KEYS
from app.tensors.gather_call import Device, Encoding
from app.tensors.operator_signature import Reduction, Signature
from app.tensors.scatter_call import REMOVE, TABLE_SCATTER, UPSERT

_KEYS: Final = "Shape [n]. Has the type of the table's keys (int64, uint64 or string); int32 is accepted for int64."


class ScatterRequest(RequestModel):
    """A ScatterND (ONNX 18) into a resident tensor."""

    indices: Tensor = Field(description="int64. Each tuple in the last dimension addresses an element or slice.")
    updates: Tensor = Field(description="Has the tensor's type and shape indices.shape[:-1] + tensor.shape[k:].")
    reduction: Combined = "none"


class UpsertRequest(RequestModel):
    """Rows to change or add in a table with keys: rows of known keys change, rows of new keys are appended."""

    keys: Tensor = Field(description=f"{_KEYS} A new key gets a new row, which starts from zeros.")
    updates: Tensor = Field(description="One row per key. Has the table's type and shape [n] + table.shape[1:].")
    reduction: Combined = "none"


class RemoveRequest(RequestModel):
    """Keys of the rows to remove from a table."""

    keys: Tensor = Field(description=f"{_KEYS} The last rows move into the gaps.")


TABLE_REQUESTS: Final[dict[str, type[RequestModel]]] = {
    TABLE_SCATTER.operator: ScatterRequest,
    UPSERT.operator: UpsertRequest,
    REMOVE.operator: RemoveRequest,
}
"""Request models of changes to a resident tensor, by the names of their signatures."""


class ScatterCallRequest(RequestModel):
    """The members of a scatter whose output is a new tensor. Its signature defines `dialect`."""

    data: GivenData
    indices: Tensor
    updates: Tensor
    reduction: Combined = "none"
    dialect: str
    device: Device = Field("auto", description="Device to run on. Scatters run on the CPU.")
    output_encoding: OutputEncoding = "values"


def check_reduction(signature: Signature, dialect: str, reduction: Reduction, pointer: str) -> None:
    """Raise invalid_field unless the dialect supports the reduction."""
    known = signature.reductions[dialect]
    if reduction not in known:
        having = next(name for name, others in signature.reductions.items() if reduction in others)
        raise invalid_field(
            pointer,
            f"{dialect} has no reduction {reduction!r}; it has {', '.join(known)}",
            f"Use a dialect such as '{having}', which has {reduction!r}.",
        )


_DATA_SHAPE: Final = "Shape of the gather's data. Send exactly one of `data_shape` and `tensor`."
_TENSOR: Final = "Name of a resident tensor with the shape of the gather's data and the type of grad_output."
_LDA_COEFF: Final = "Factor for the sum, rounded to the type of the sum and applied once."
_SPARSE: Final = "Return only the slices that an index addresses, as `grad_indices` and `grad_values`. Requires {} 0."
_DEVICE: Final = "Device to run on. Gradients run on the CPU."
_ENCODING: Final = "Encoding of the response's items."


class BackwardRequest(RequestModel):
    """The members of a gradient request. Its signature defines `parameter`, `dialect` and `sparse`."""

    indices: Tensor = Field(description="The gather's indices.")
    grad_output: Tensor = Field(
        description="Derivative of the loss with respect to the gather's output, in its shape. A float type."
    )
    data_shape: Annotated[Shape, SIZES] = Field(ABSENT, description=_DATA_SHAPE)
    tensor: TensorName = Field(ABSENT, description=_TENSOR)
    parameter: int
    lda_coeff: JsonFinite = Field(1.0, description=_LDA_COEFF)
    sparse: JsonBool = False
    dialect: str
    device: Device = Field("auto", description=_DEVICE)
    output_encoding: Encoding = Field("values", description=_ENCODING)


def check_one_shape(request: BackwardRequest, prefix: str = "") -> None:
    """Raise invalid_field unless the request has exactly one of `data_shape` and `tensor`."""
    if (request.data_shape is ABSENT) != (request.tensor is ABSENT):
        return
    if request.tensor is ABSENT:
        raise invalid_field(
            f"{prefix}/data_shape",
            "the shape of grad_data is missing: neither data_shape nor tensor was sent",
            "Add 'data_shape', the shape of the gather's data, or 'tensor', the name of a resident one.",
        )
    raise invalid_field(
        f"{prefix}/tensor",
        "the shape of grad_data is specified twice: by data_shape and by tensor",
        "Leave out 'data_shape' or 'tensor'.",
    )


def sparse_field(signature: Signature) -> Any:
    """Return the type and the `sparse` field for the gradient of an operator."""
    return JsonBool, Field(False, description=_SPARSE.format(signature.parameters[0].name))


_MEMBERS: Final[dict[str, type[RequestModel]]] = {
    "gather": GatherRequest,
    "scatter": ScatterCallRequest,
    "gradient": BackwardRequest,
}


@lru_cache(64)
def operator_request(signature: Signature) -> type[RequestModel]:
    """Return the model of the operator's JSON requests.

    Its first parameter is the `parameter` field, aliased to the parameter's own name.
    """
    base = _MEMBERS[signature.kind]
    own: dict[str, Any] = {parameter.name: parameter_field(parameter) for parameter in signature.parameters[1:]}
    own |= dialect_fields(signature)
    if signature.parameters:
        first = signature.parameters[0]
        own = {"parameter": parameter_field(first, parameter_note(signature), alias=first.name)} | own
    if signature.kind == "gather":
        for name in signature.further:
            may_be_resident = GivenData if name in signature.residents else Tensor
            own[name] = may_be_resident, Field(ABSENT if name in signature.optional else ...)
        if signature.keyed:
            own |= {"indices": (Tensor, ABSENT), KEYS: (Tensor, Field(ABSENT, description=KEYS_DESCRIPTION))}
            own |= KEY_MEMBERS
    if signature.kind == "gradient":
        own.pop("out_of_bounds", None)
        own["sparse"] = sparse_field(signature)
    name, text = signature.schema
    dialect = dialect_field(signature.dialects, signature.default_dialect)
    return create_model(name, __base__=base, __module__=base.__module__, __doc__=text, **own, dialect=dialect)
