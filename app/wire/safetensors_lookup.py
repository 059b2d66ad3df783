"""Lookups in safetensors: tensors `0.indices`, `0.offsets`, `0.weights`, `1.indices`, ..., and all else as JSON.

That JSON is the text `lookup` of the header's `__metadata__`: the request as JSON has it, without the arrays. The
answer has `output`, or `0.output`, `1.output`, ..., and in the same place what a JSON answer says beside its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from app.errors import invalid_field
from app.near_name import instead_of, shorten
from app.requests.fill_value import read_fill_value
from app.requests.schemas.lookup_request import (
    LookupParameterDicts,
    check_arrays_given,
    valid_parameters,
)
from app.tensors.gather_call import FillValue
from app.tensors.lookup_call import ARRAYS, LOOKUP, Feature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from app.wire.json import grammar_and_duplicate_keys, lossless_json
from app.wire.little_endian_items import Charge

_POINTER: Final = f"/__metadata__/{LOOKUP}"
_WHERE: Final = f"the text '{LOOKUP}' of __metadata__"
_NAME: Final = re.compile(rf"(0|[1-9][0-9]{{0,5}})\.({'|'.join(ARRAYS)})")
_OBJECTS: Final = 32
"""Bytes that a byte of the text takes as Python objects, as in `lookup_messages`."""
_USUAL: Final = 1 << 10


def read_parameters(
    text: str, pointer: str, limits: Limits, charge: Charge | None
) -> tuple[LookupParameterDicts, FillValue | None]:
    """What the JSON beside the arrays says, and its fill value; it stands in the request at `pointer`.

    Raises invalid_field and limit_exceeded.
    """
    if charge is not None:
        charge(_OBJECTS * len(text))
    fault = grammar_and_duplicate_keys.fault(text.encode("utf-8", "surrogatepass"), charge)
    if fault is not None:
        hint = f"In the JSON text at {pointer}: {fault.hint.replace('the body', 'the text')}"
        raise invalid_field(pointer, f"{LOOKUP} must be a JSON object: {fault.detail}", hint)
    document = lossless_json.loads(text)
    fields = valid_parameters(document, pointer, limits.features)
    fill_value = None
    if "fill_value" in document:
        fill_value = read_fill_value(fields.fill_value, fields.out_of_bounds, f"{pointer}/fill_value")
    return fields, fill_value


def arrays_of(
    fields: LookupParameterDicts, found: Mapping[str, Any], pointer: Any, what: str
) -> tuple[dict[str, Any], ...]:
    """Those of the arrays `found` that each feature has, by their names without its number. Raises invalid_field.

    `pointer` says where the request has one of a name, or would have it; they are called `what`.
    """
    features: Sequence[dict[str, Any]] = fields.features
    arrays: list[dict[str, Any]] = [{} for _ in features]
    usual = _usual_places()
    for name, given in found.items():
        place = usual.get(name) or _place_of(name)
        if place is not None and place[0] < len(arrays):
            arrays[place[0]][place[1]] = given
        else:
            bare = next((number for number in range(len(arrays)) if f"{number}.indices" not in found), None)
            kind = what.rpartition(" ")[2]
            hint = f"Leave out the {kind} {shorten(name)!r}, since the last feature is {len(arrays) - 1}."
            if bare is not None:
                hint = f"{instead_of(name, f'{bare}.indices')}: each name begins with the number of its feature."
            raise invalid_field(
                pointer(name),
                f"{lossless_json.shown(name)!a} is not {what} of this request, which has {len(arrays)} features: each "
                "has its number and .indices, .offsets or .weights",
                hint,
            )
    for number, (feature, own) in enumerate(zip(features, arrays, strict=True)):
        if "indices" not in own:
            missing = f"{number}.indices"
            raise invalid_field(pointer(missing), f"{missing} is missing", f"Add {what} '{missing}'.")
        pooling = feature.get("pooling", "none")
        if len(own) > 1 or pooling != "none":
            arrays[number] = {name: own[name] for name in ARRAYS if name in own}
            check_arrays_given(pooling, tuple(own), lambda name: pointer(f"{number}.{name}"))  # noqa: B023
    return tuple(arrays)


def _place_of(name: str) -> tuple[int, str] | None:
    """The number of a feature and which array of it `name` names, if it is the name of one."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match[2])


@cache
def _usual_places() -> Mapping[str, tuple[int, str]]:
    """The same of each name of the first `_USUAL` features: an expression takes as long as the JSON of an array."""
    return {f"{number}.{array}": (number, array) for number in range(_USUAL) for array in ARRAYS}


def features_of(
    fields: LookupParameterDicts, pointer: str, arrays: Iterable[Collection[str]], tensors: Iterator[Tensor]
) -> list[Feature]:
    """The features of a request, which has `fields` at `pointer`; each one's arrays are the next of the `tensors`."""
    features: Sequence[dict[str, Any]] = fields.features
    at = f"{pointer}/features/"
    return [
        Feature(
            given["tensor"],
            next(tensors),
            next(tensors) if "offsets" in own else None,
            next(tensors) if "weights" in own else None,
            given.get("pooling", "none"),
            at + str(number),
        )
        if len(own) > 1
        else Feature(given["tensor"], next(tensors), None, None, given.get("pooling", "none"), at + str(number))
        for number, (given, own) in enumerate(zip(features, arrays, strict=True))
    ]
