"""What a request says that names rows by key: which fields it may have, and the row that stands for missing keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from app.errors import invalid_field
from app.json_text import lossless_json
from app.requests.fill_value import JsonItem, json_value
from app.requests.schemas.gather_request import NamedTensor
from app.tensors.by_key import KEY_FIELDS, KEYS, ByKey, MissingRow

_FORMS = 'a position, such as 0, or a key, such as {"key": 7}'


def check_one_given(given: Collection[str], pointer: Callable[[str], str]) -> None:
    """Raise invalid_field unless a request has either indices or keys; `pointer` is that of an array."""
    at = pointer("indices")
    if "indices" not in given and KEYS not in given:
        raise invalid_field(at, "indices is missing", f"Add 'indices' at {at}.")
    if "indices" in given and KEYS in given:
        raise invalid_field(at, "indices and keys are both given", f"Leave out 'indices' at {at}, or 'keys'.")


def given_by_key(fields: Any, has_keys: bool, field: Callable[[str], str]) -> ByKey | None:
    """What valid fields say beside keys, None without keys. `field` is the pointer of a field.

    Raises invalid_field for a field that is for keys where there are none, and for a wrong `missing_row`.
    """
    given: Collection[str] = fields.model_fields_set
    if not has_keys:
        for name in KEY_FIELDS:
            if name in given:
                detail = f"{name} is for a request with keys, and this one has indices"
                raise invalid_field(field(name), detail, f"Leave out '{name}', or send 'keys' in place of 'indices'.")
        return None
    at = field("missing_row")
    if fields.missing != "row":
        if "missing_row" in given:
            hint = f"Write 'row' at {field('missing')}, or leave out 'missing_row'."
            raise invalid_field(at, "missing_row is for missing row only", hint)
        return ByKey(fields.missing, None, fields.found)
    if "missing_row" not in given:
        raise invalid_field(
            at, "missing_row is missing, which missing row needs", f"Add 'missing_row' at {at}: {_FORMS}."
        )
    return ByKey(fields.missing, _missing_row(json_value(fields.missing_row, "missing_row", at), at), fields.found)


def _missing_row(value: Any, pointer: str) -> MissingRow:
    """The row that a JSON value names: an integer, or an object with a key. Raises invalid_field."""
    if type(value) is dict and [*value] == ["key"]:
        return MissingRow(pointer, key=JsonItem(value["key"], f"{pointer}/key", "key"))
    position = lossless_json.integer(value)
    if position is None:
        raise invalid_field(pointer, f"missing_row must be {_FORMS}", f"Write at {pointer} {_FORMS}.")
    return MissingRow(pointer, position)


def check_gather(fields: Any, keys: str, field: Callable[[str], str]) -> None:
    """Raise invalid_field for what a gather by key cannot have: data in the request, bounds, or another axis than 0.

    `keys` is where the request has the keys.
    """
    if not isinstance(fields.data, NamedTensor):
        detail = "keys name rows of a resident tensor, and the data is in the request"
        raise invalid_field(keys, detail, "Send 'indices', positions of rows, or name a resident tensor with keys.")
    if fields.parameter != 0:
        at = field("axis")
        raise invalid_field(
            at, "keys name rows, along axis 0", f"Write 0 at {at}, or send 'indices' in place of 'keys'."
        )
    check_no_bounds(fields, field)


def check_no_bounds(fields: Any, field: Callable[[str], str]) -> None:
    """Raise invalid_field for `out_of_bounds` of a request that has keys alone."""
    if "out_of_bounds" in fields.model_fields_set:
        at = field("out_of_bounds")
        hint = "Leave out 'out_of_bounds'; 'missing' says what becomes of keys that the table lacks."
        raise invalid_field(at, "out_of_bounds is for indices, and keys have no bounds", hint)
