"""A lookup in a binary format: arrays called `0.indices`, `0.offsets` and so on, and a JSON text with everything
else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from functools import cache
from typing import Any, Final, TypeVar

from app.errors import invalid_field
from app.json_text import grammar, lossless_json
from app.memory.budget import Memory
from app.near_name import replacement_text, shorten
from app.requests.envelope_cache import Validated, envelopes
from app.requests.read_call import finish_validation, validate
from app.requests.request import Origin, Request
from app.tensors.by_key import KEYS
from app.tensors.lookup_call import ARRAYS, LOOKUP, LOOKUP_SIGNATURE
from app.tensors.shape_limits import Limits

_NAME: Final = re.compile(rf"(0|[1-9][0-9]{{0,5}})\.({'|'.join(ARRAYS)})")
_OBJECTS: Final = 32
"""Bytes of Python objects per byte of the text."""
_USUAL: Final = 1 << 10
_INDICES, _KEYS = ARRAYS.index("indices"), ARRAYS.index(KEYS)
Array = TypeVar("Array")


def validate_lookup(
    text: str,
    at: str,
    found: Mapping[str, Array],
    pointer: Callable[[str], str],
    what: str,
    limits: Limits,
    memory: Memory,
) -> tuple[dict[str, Array], Validated]:
    """Validate a lookup. Returns the arrays `found`, by their names in a document, and the validated JSON text.

    `at` is the text's pointer. `pointer` returns the pointer of an array by its name, even if the array is missing;
    `what` is the word for an array in errors. Raises invalid_field and limit_exceeded.
    """
    key = f"\0{at}?{','.join(found)}?{text}".encode("utf-8", "surrogatepass")
    validated = envelopes.get((LOOKUP_SIGNATURE, key))
    if validated is not None:
        return _sort_by_feature(len(validated.fields.features), found, pointer, what), validated
    origin = Origin(at, "", lambda name: pointer(name_beside(name)))
    request = Request(_document(text, at, memory), None, origin, memory, ())
    fields = validate(LOOKUP_SIGNATURE, request, limits)
    arrays = _sort_by_feature(len(fields.features), found, pointer, what)
    validated, _ = finish_validation(LOOKUP_SIGNATURE, request._replace(beside=arrays), fields)
    envelopes.keep(LOOKUP_SIGNATURE, key, validated)
    return arrays, validated


def _document(text: str, pointer: str, memory: Memory) -> Any:
    """Parse the JSON text, which is at `pointer` in the request. Raises invalid_field if it is not JSON."""
    memory.charge(_OBJECTS * len(text))
    try:
        return grammar.value_of(text, memory)
    except grammar.FramingFault as fault:
        hint = f"In the JSON text at {pointer}: {str(fault.hint).replace('the body', 'the text')}"
        raise invalid_field(pointer, f"{LOOKUP} must be a JSON object: {fault.detail}", hint) from None


def _sort_by_feature(
    features: int, found: Mapping[str, Array], pointer: Callable[[str], str], what: str
) -> dict[str, Array]:
    """Return the arrays `found` by their names in a document (`features/3/indices`), in document order.

    Raises invalid_field for the first unknown name, and for missing indices.
    """
    named: dict[tuple[int, int], Array] = {}
    usual = _places_by_name()
    for name, given in found.items():
        place = usual.get(name) or _place_of(name)
        if place is None or place[0] >= features:
            raise _unknown_array(name, features, found.keys(), pointer, what)
        named[place] = given
    for number in range(features):
        if (number, _INDICES) not in named and (number, _KEYS) not in named:
            missing = f"{number}.{ARRAYS[0]}"
            raise invalid_field(pointer(missing), f"{missing} is missing", f"Add {what} '{missing}'.")
    return {f"features/{place[0]}/{ARRAYS[place[1]]}": named[place] for place in sorted(named)}


def name_beside(name: str) -> str:
    """Return the name of an array in a binary format: `3.indices` for `features/3/indices`."""
    return name.removeprefix("features/").replace("/", ".")


def _unknown_array(name: str, features: int, found: Set[str], pointer: Callable[[str], str], what: str) -> Exception:
    bare = next((one for one in range(features) if found.isdisjoint((f"{one}.indices", f"{one}.{KEYS}"))), None)
    kind = what.rpartition(" ")[2]
    hint = f"Leave out the {kind} {shorten(name)!r}, since the last feature is {features - 1}."
    if bare is not None:
        hint = f"{replacement_text(name, f'{bare}.indices')}: each name begins with the number of its feature."
    return invalid_field(
        pointer(name),
        f"{lossless_json.shown(name)!a} is not {what} of this request, which has {features} features: each "
        "has its number and .indices or .keys, .offsets or .weights",
        hint,
    )


def _place_of(name: str) -> tuple[int, int] | None:
    """Parse an array's name into the feature's index and the array's position in ARRAYS.

    Returns None if it is invalid.
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), ARRAYS.index(match[2]))


@cache
def _places_by_name() -> Mapping[str, tuple[int, int]]:
    """Return the results of `_place_of` for the arrays of the first `_USUAL` features.

    They are cached, because matching a name takes about as long as handling its array.
    """
    return {f"{number}.{array}": (number, place) for number in range(_USUAL) for place, array in enumerate(ARRAYS)}
