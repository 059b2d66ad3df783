"""The JSON of an infer request to the model `lookup`: inputs of any number, and what is no array in one parameter."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, ValidationError
from pydantic.types import FailFast

from app.requests.schemas.invalid_fields import InvalidFields
from app.requests.schemas.members import (
    ABSENT,
    LOOKUP_TEXT,
    Detail,
    JsonString,
    Needed,
    OrNull,
    TooSmall,
    as_dict,
)
from app.requests.schemas.v2_infer_request import (
    Count,
    Flag,
    InferRequestedOutputParameters,
    OpenRequestModel,
    OperatorInput,
    UnicodeString,
)

_OBJECT = Detail("parameters must be an object")
_INPUT: Final = as_dict(OperatorInput)
"""As thousands of inputs are read: no object is made of each."""


class LookupRequestedOutput(OpenRequestModel):
    """An output that is asked for."""

    name: Annotated[JsonString, Needed("an output needs a name, a string")]
    parameters: Annotated[InferRequestedOutputParameters, OrNull(), _OBJECT] = ABSENT


_OUTPUT: Final = as_dict(LookupRequestedOutput)


class LookupInferParameters(OpenRequestModel):
    """The parameters of an infer request to the model `lookup`, of which unknown ones are ignored."""

    lookup: Annotated[
        JsonString,
        Needed("the parameter lookup is missing, the JSON of the request but for the arrays"),
        LOOKUP_TEXT,
    ]
    binary_data_output: Flag = ABSENT
    timeout: Annotated[
        Count, Detail("{name} must be an integer"), TooSmall("{name} must be 0 or more microseconds")
    ] = Field(0)


class LookupInferRequest(OpenRequestModel):
    """An infer request to the model `lookup`."""

    id: Annotated[UnicodeString, OrNull(), Detail("id must be a string of Unicode")] = ABSENT
    inputs: Annotated[
        list[Annotated[OperatorInput, Detail("an input must be an object")]],
        FailFast(),
        Detail("inputs must be a list of tensors"),
    ]
    parameters: Annotated[LookupInferParameters, _OBJECT]
    outputs: Annotated[
        list[Annotated[LookupRequestedOutput, Detail("an output must be an object")]],
        FailFast(),
        OrNull(),
        Detail("outputs must be a list"),
    ] = ABSENT


class LookupInferDicts(LookupInferRequest):
    """A `LookupInferRequest` whose inputs and outputs are dicts."""

    inputs: Annotated[
        list[Annotated[_INPUT, Detail("an input must be an object")]],  # type: ignore[valid-type]
        FailFast(),
        Detail("inputs must be a list of tensors"),
    ]
    outputs: Annotated[
        list[Annotated[_OUTPUT, Detail("an output must be an object")]],  # type: ignore[valid-type]
        FailFast(),
        OrNull(),
        Detail("outputs must be a list"),
    ] = ABSENT


def valid_infer_lookup(document: Any) -> LookupInferDicts:
    """A `LookupInferRequest`, validated. Raises invalid_field and not_implemented at the first member that is wrong."""
    try:
        return LookupInferDicts.model_validate(document)
    except ValidationError as refusal:
        faults = InvalidFields(refusal, LookupInferRequest, document)
    faults.raise_unknown()
    raise faults.first()
