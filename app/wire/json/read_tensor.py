"""What the JSON bodies of gathers and scatters have in common: their tensors, and which fault is reported first.

The members are validated by the models of `app.wire.request_schemas`; what models cannot say is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from app.errors import GatherError, Place, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.near_dtype import hint_for_dtype
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates
from app.wire.json import grammar_and_duplicate_keys, lossless_json
from app.wire.json.body_without_arrays import read_envelope
from app.wire.json.codec_constants import ESCAPED, QUOTED
from app.wire.json.find_arrays import ArrayPlace, FoundArrays
from app.wire.json.read_base64 import Packed, base64_bytes
from app.wire.json.read_values import Values
from app.wire.little_endian_items import REFUSED_BY_CHARGE, Charge
from app.wire.request_schemas.gather_request import Tensor as TensorFields
from app.wire.request_schemas.invalid_fields import InvalidFields
from app.wire.request_schemas.members import ABSENT, RequestModel

_ANY_TYPE: Final = DTYPES["bool"]
"""Stands for a type that does not exist, until everything else has been looked at."""
GivenTensor = tuple[Values | Packed, str | None]
"""A tensor of the request: its items, and its dtype if that is no type."""
Request = TypeVar("Request", bound=RequestModel)


class WrongTensors(Exception):
    """The values of these tensors do not match shape or type; how, is to be found out."""

    def __init__(self, sources: list[Values | Packed]) -> None:
        super().__init__()
        self.sources = sources


class FramingFault(GatherError):
    """`check_framing` has found what is wrong: nothing comes before it, and so nobody need look again."""


def read_document(body: Buffer, found: FoundArrays, charge: Charge | None, tensors: int = 2) -> Any:
    """All but the arrays, of a request with up to so many tensors. Raises malformed_request and limit_exceeded."""
    if not found.closed:
        raise GatherError("malformed_request", "the body is not JSON: quotes or brackets do not close")
    document = read_envelope(body, found, "the values of the tensors", check_framing, charge)
    if found.arrays > tensors:
        check_framing(body, charge)  # with a key given twice, the numbers would not be what they seem
    return document


def valid_fields(
    model: type[Request],
    document: Any,
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    charge: Charge | None = None,
) -> Request:
    """`document`, validated. Raises invalid_field; what is wrong with a tensor includes what `given_tensor` refuses."""
    try:
        return model.model_validate(document)
    except ValidationError as refusal:
        faults = InvalidFields(refusal, model, document)
    faults.raise_unknown()
    for name, field in model.model_fields.items():
        faults.raise_first(field.alias or name)
        given = document.get(name)
        if type(given) is dict and "tensor" not in given:
            given_tensor(name, TensorFields.model_validate(given), body, view, places, charge)
    raise AssertionError("the request was refused, and nothing is wrong with it")


def given_tensor(
    name: str,
    fields: TensorFields,
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    charge: Charge | None = None,
) -> GivenTensor:
    """The tensor `name`, whose members have been validated one by one. Raises invalid_field."""
    return given_array(name, fields.dtype, fields.shape, fields.values, fields.base64, body, view, places, charge)


def given_array(
    name: str,
    type_name: str,
    shape: Any,
    values: Any,
    base64: Any,
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    charge: Charge | None = None,
) -> GivenTensor:
    """The tensor `name` with these members, which have been validated one by one or are ABSENT. Raises invalid_field.

    These rules are not said by its model: there are values or base64 and not both, base64 needs a shape, and what
    stands where an array was cut out is a list or one value, or a string of base64.
    """
    known = DTYPES.get(type_name)
    dtype = known or _ANY_TYPE
    unknown = None if known else type_name
    if values is not ABSENT:
        if base64 is not ABSENT:
            raise invalid_field(f"/{name}", f"{name} has both values and base64", f"Leave out 'base64' of {name}.")
        first, end, depth = places[values]
        if depth <= 0:  # no list
            depth = 0
            if body[first] in b"n{":
                raise invalid_field(
                    f"/{name}/values",
                    "values must be a list, or one value for a tensor without dimensions",
                    f"Write a list at /{name}/values, such as [0].",
                )
        return Values(view, name, dtype, shape, first, end, depth), unknown
    if base64 is ABSENT:
        hint = f"Add 'values' at /{name}/values, the items in a list."
        raise invalid_field(f"/{name}", f"{name} has neither values nor base64", hint)
    first, end, kind = places[base64]
    if kind not in (QUOTED, ESCAPED):
        raise invalid_field(f"/{name}/base64", "base64 must be a string", f"Write a string at /{name}/base64.")
    if shape is ABSENT:
        raise invalid_field(
            f"/{name}/shape",
            f"{name} needs a shape, since it has base64",
            f"Add 'shape' at /{name}/shape, which base64 does not give.",
        )
    raw = base64_bytes(name, body, view, first, end, kind == ESCAPED, charge)
    return Packed(name, dtype, shape, raw), unknown


def unsupported_dtype(name: str, dtype: str) -> GatherError:
    """The error for a tensor whose dtype is the name of no type."""
    shown = str(lossless_json.shown(dtype))
    return GatherError(
        "unsupported_dtype",
        f"{shown!r} is no element type",
        pointer=f"/{name}/dtype",
        hint=hint_for_dtype(shown, of=name),
    )


def raise_first_fault(error: Exception, body: Buffer, charge: Charge | None) -> None:
    """Raises what is wrong first with a body that was refused, if that is something else than `error`.

    What is no JSON comes first, then all counts, then all values, and data before indices.
    """
    if isinstance(error, FramingFault) or (isinstance(error, GatherError) and error.code in REFUSED_BY_CHARGE):
        return
    check_framing(body, charge)
    if isinstance(error, WrongTensors):
        for source in error.sources:
            source.explain_nesting()
        for source in error.sources:
            source.explain_value()


def too_long_string(tensor: PackedStrings, limits: Limits, what: str = "a string") -> GatherError | None:
    """The error for a string that is too long, if there is one; it calls the string `what`."""
    item = tensor.first_longer(limits.string_bytes)
    if item < 0:
        return None
    return GatherError(
        "limit_exceeded",
        f"{what} has more than {limits.string_bytes} bytes of UTF-8",
        places=[Place(tensor.locate(item), coordinates(item, tensor.shape))],
        facts={"limit": "string_bytes", "maximum": limits.string_bytes},
    )


def first_too_long_string(tensors: Iterable[Tensor], limits: Limits) -> GatherError | None:
    """The error for the first string of any of them that is too long, if there is one."""
    for tensor in tensors:
        found = too_long_string(tensor, limits) if isinstance(tensor, PackedStrings) else None
        if found is not None:
            return found
    return None


def check_framing(body: Buffer, charge: Charge | None) -> None:
    """Raises malformed_request where the body is not JSON, or names a key twice, and what `charge` raises."""
    fault = grammar_and_duplicate_keys.fault(body, charge)
    if fault is not None:
        raise FramingFault("malformed_request", fault.detail, hint=fault.hint)
