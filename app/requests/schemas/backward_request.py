"""The model of the requests for the gradient of a gather."""

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

_DATA_SHAPE: Final = "Shape of the gather's data; exactly one of `data_shape` and `tensor`."
_TENSOR: Final = "Name of a resident tensor that has the shape of the gather's data, and grad_output's type."
_LDA_COEFF: Final = "What the sum is multiplied by, once, rounded to the type of the sum."
_SPARSE: Final = "Answer with the slices that an index names alone, `grad_indices` and `grad_values`; for {} 0 only."
_DEVICE: Final = "Where to run; gradients run on the CPU."
_ENCODING: Final = "Form of the answer's items."


class BackwardRequest(RequestModel):
    """The members of a gradient; `parameter`, `dialect` and `sparse` are as its signature has them."""

    indices: Tensor = Field(description="The gather's indices.")
    grad_output: Tensor = Field(
        description="The derivative of the loss by the gather's output, of that shape; a float type."
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
    """Exactly one of `data_shape` and `tensor` is there. Raises invalid_field."""
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
    """The field `sparse` of the gradients of an operator."""
    return JsonBool, Field(False, description=_SPARSE.format(signature.parameters[0].name))
