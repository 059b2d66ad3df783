"""The request for the gradient of a gather."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from app.errors import invalid_field
from app.requests.schemas.gather_request import Tensor
from app.requests.schemas.member_types import (
    ABSENT,
    SIZES,
    JsonBool,
    JsonFinite,
    RequestModel,
    Shape,
    TensorName,
)
from app.tensors.gather_call import Device, Encoding
from app.tensors.operator_signature import Signature

_DATA_SHAPE: Final = "Shape of the gather's data. Send exactly one of `data_shape` and `tensor`."
_TENSOR: Final = "Name of a resident tensor with the shape of the gather's data and the type of grad_output."
_LDA_COEFF: Final = "Factor for the sum, rounded to the type of the sum and applied once."
_SPARSE: Final = "Answer only the slices that an index names, as `grad_indices` and `grad_values`. Needs {} 0."
_DEVICE: Final = "Device to run on. Gradients run on the CPU."
_ENCODING: Final = "Encoding of the answer's items."


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
            "neither data_shape nor tensor says which shape grad_data has",
            "Add 'data_shape', the shape of the gather's data, or 'tensor', the name of a resident one.",
        )
    raise invalid_field(
        f"{prefix}/tensor",
        "the shape of grad_data is given twice: by data_shape and by tensor",
        "Leave out 'data_shape' or 'tensor'.",
    )


def sparse_field(signature: Signature) -> Any:
    """Return the type and the field `sparse` for the gradient of an operator."""
    return JsonBool, Field(False, description=_SPARSE.format(signature.parameters[0].name))
