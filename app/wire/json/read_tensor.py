"""A tensor of a JSON body: its dtype, shape and values or base64, and which fault of it is reported first.

Of the bodies of gathers and scatters `gather_messages` and `scatter_messages` read the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import coordinates
from app.tensors.tensor_name import TENSOR_NAME
from app.wire.json import grammar_and_duplicate_keys, lossless_json
from app.wire.json.body_without_arrays import read_envelope
from app.wire.json.find_arrays import ESCAPED, STRING, ArrayPlace, FoundArrays
from app.wire.json.read_base64 import Packed, base64_bytes
from app.wire.json.read_values import Values
from app.wire.little_endian_items import REFUSED_BY_CHARGE, Charge

_TENSOR_FIELDS: Final = frozenset(("dtype", "shape", "values", "base64"))
_ANY_TYPE: Final = DTYPES["bool"]
"""Stands for a type that does not exist, until everything else has been looked at."""
GivenTensor = tuple[Values | Packed, str | None, int]
"""A tensor of the request, its fields checked: its items, its dtype if that is no type, and how many members it has."""


class WrongTensors(Exception):
    """The values of these tensors do not match shape or type; how, is to be found out."""

    def __init__(self, sources: list[Values | Packed]) -> None:
        super().__init__()
        self.sources = sources


def read_document(body: Buffer, found: FoundArrays, charge: Charge | None) -> Any:
    """All but the arrays. Raises malformed_request and limit_exceeded."""
    if not found.closed:
        raise GatherError("malformed_request", "the body is not JSON: quotes or brackets do not close")
    document = read_envelope(body, found, "the values of the tensors", check_framing, charge)
    if found.arrays > 2:
        check_framing(body, charge)  # with a key given twice, the numbers would not be what they seem
    return document


def given_tensor(
    name: str,
    document: Mapping[str, Any],
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    charge: Charge | None = None,
) -> GivenTensor:
    """The fields of the tensor `name`, checked one by one. Raises invalid_field."""
    fields = document.get(name)
    if type(fields) is not dict:
        raise invalid_field(f"/{name}", f"{name} must be an object" if name in document else f"{name} is missing")
    type_name, shape, array = fields.get("dtype"), fields.get("shape", ...), fields.get("values")
    usual = len(fields) == 3 and type_name is not None and shape is not ... and array is not None
    if not usual and not fields.keys() <= _TENSOR_FIELDS:
        raise unknown_field(f"/{name}", fields, _TENSOR_FIELDS)
    if type(type_name) is not str:
        raise invalid_field(f"/{name}/dtype", f"{name} needs a dtype, the name of a type")
    if shape is not ...:
        shape = _shape(name, shape)
    known = DTYPES.get(type_name)
    dtype = known or _ANY_TYPE
    unknown = None if known else type_name
    if array is not None:
        if "base64" in fields:
            raise invalid_field(f"/{name}", f"{name} has both values and base64")
        first, end, depth = places[int(array)]
        if depth <= 0:  # no list
            depth = 0
            if body[first] in b"n{":
                raise invalid_field(
                    f"/{name}/values", "values must be a list, or one value for a tensor without dimensions"
                )
        if shape is ...:
            shape = None
        return Values(view, name, dtype, shape, first, end, depth), unknown, len(fields)
    if "base64" not in fields:
        raise invalid_field(f"/{name}", f"{name} has neither values nor base64")
    first, end, kind = places[int(fields["base64"])]
    if kind not in (STRING, ESCAPED):
        raise invalid_field(f"/{name}/base64", "base64 must be a string")
    if shape is ...:
        raise invalid_field(f"/{name}/shape", f"{name} needs a shape, since it has base64")
    raw = base64_bytes(name, body, view, first, end, kind == ESCAPED, charge)
    return Packed(name, dtype, shape, raw), unknown, len(fields)


def _shape(name: str, sizes: Any) -> tuple[int, ...]:
    if type(sizes) is not list:
        raise invalid_field(f"/{name}/shape", "shape must be a list of integers")
    for size in sizes:
        if type(size) is not int or size < 0:
            break
    else:
        return tuple(sizes)
    shape = lossless_json.dimensions(sizes)
    if isinstance(shape, int):
        raise invalid_field(f"/{name}/shape/{shape}", "a dimension must be an integer of 0 or more")
    return shape


def resident_name(fields: Mapping[str, Any]) -> str:
    """The name of a resident tensor. Raises invalid_field."""
    if len(fields) > 1:
        raise unknown_field("/data", fields, frozenset(("tensor",)))
    name = fields["tensor"]
    if type(name) is not str or not TENSOR_NAME.fullmatch(name):
        raise invalid_field("/data/tensor", "a name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with none of . _ -")
    return name


def unsupported_dtype(name: str, dtype: str) -> GatherError:
    """The error for a tensor whose dtype is the name of no type."""
    detail = f"{lossless_json.shown(dtype)!r} is no element type"
    return GatherError("unsupported_dtype", detail, pointer=f"/{name}/dtype")


def raise_first_fault(error: Exception, body: Buffer, charge: Charge | None) -> None:
    """Raises what is wrong first with a body that was refused, if that is something else than `error`.

    What is no JSON comes first, then all counts, then all values, and data before indices.
    """
    if isinstance(error, GatherError) and error.code in REFUSED_BY_CHARGE:
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


def check_framing(body: Buffer, charge: Charge | None) -> None:
    """Raises malformed_request where the body is not JSON, or names a key twice, and what `charge` raises."""
    fault = grammar_and_duplicate_keys.fault(body, charge)
    if fault is not None:
        raise GatherError("malformed_request", fault)


def unknown_field(pointer: str, fields: Mapping[str, Any], known: Collection[str]) -> GatherError:
    """The error for the first of `fields` that is not `known`."""
    name = next(lossless_json.printable(name) for name in fields if name not in known)
    pointer += "/" + name.replace("~", "~0").replace("/", "~1")
    return invalid_field(
        pointer, f"{lossless_json.shown(name)!r} is not a field here; there are {', '.join(sorted(known))}"
    )


def not_one_of(name: str, allowed: Collection[str]) -> GatherError:
    """The error for a field that has none of the values that are allowed."""
    return invalid_field(f"/{name}", f"{name} must be one of {', '.join(allowed)}")
