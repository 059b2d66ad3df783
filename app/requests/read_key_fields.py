"""The fields of requests that select rows by key: which fields are allowed, and the row that replaces missing keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from app.errors import invalid_field
from app.json_text import lossless_json
from app.requests.fill_value import JsonItem, json_value
from app.requests.schemas.gather_request import NamedTensor
from app.tensors.by_key import KEY_FIELDS, KEYS, ByKey, NamedRow
from app.tensors.lookup_call import ROWS_OF_BAGS

_FORMS = 'a position, such as 0, or a key, such as {"key": 7}'


def check_one_given(given: Collection[str], pointer: Callable[[str], str]) -> None:
    """Raise invalid_field unless exactly one of indices and keys is given; `pointer` returns an array's pointer."""
    at = pointer("indices")
    if "indices" not in given and KEYS not in given:
        raise invalid_field(at, "indices is missing", f"Add 'indices' at {at}.")
    if "indices" in given and KEYS in given:
        raise invalid_field(at, "indices and keys were both sent", f"Leave out 'indices' at {at}, or 'keys'.")


def given_by_key(fields: Any, has_keys: bool, field: Callable[[str], str]) -> ByKey | None:
    """Return the fields that go with keys, or None if there are no keys. `field` returns a field's pointer.

    Raises invalid_field if there is such a field but no keys, or if `missing_row` is invalid.
    """
    given: Collection[str] = fields.model_fields_set
    if not has_keys:
        for name in KEY_FIELDS:
            if name in given:
                detail = f"{name} is for a request with keys, but this one has indices"
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
            at, "missing_row is missing, but 'missing' is 'row'", f"Add 'missing_row' at {at}: {_FORMS}."
        )
    return ByKey(
        fields.missing, named_row(json_value(fields.missing_row, "missing_row", at), "missing_row", at), fields.found
    )


def named_row(value: Any, name: str, pointer: str) -> NamedRow:
    """Convert the JSON value of the `name` field, an integer or an object with a key, to a row reference.

    Raises invalid_field.
    """
    if type(value) is dict and [*value] == ["key"]:
        return NamedRow(pointer, key=JsonItem(value["key"], f"{pointer}/key", "key"))
    position = lossless_json.integer(value)
    if position is None:
        raise invalid_field(pointer, f"{name} must be {_FORMS}", f"Write at {pointer} {_FORMS}.")
    return NamedRow(pointer, position)


def rows_of_bags(fields: Any, has_keys: bool, field: Callable[[str], str]) -> dict[str, NamedRow]:
    """Return the rows that a valid feature specifies for its bags, by field. Raises invalid_field.

    `padding_index` must have the same form as the feature's entries: a key if the feature has keys, and otherwise a
    position.
    """
    rows: dict[str, NamedRow] = {}
    for name in ROWS_OF_BAGS:
        if name not in fields.model_fields_set:
            continue
        at = field(name)
        if fields.pooling == "none":
            hint = f"Leave out '{name}' at {at}, or give the feature a 'pooling', such as 'sum'."
            raise invalid_field(at, f"{name} is for pooling sum, mean or max, but this feature has no pooling", hint)
        rows[name] = row = named_row(getattr(fields, name), name, at)
        is_key = row.key is not None
        if is_key != has_keys and (is_key or name == "padding_index"):
            what, form = ("a key", '{"key": 7}') if has_keys else ("a position", "0")
            entries = "keys" if has_keys else "indices"
            raise invalid_field(at, f"{name} must be {what}, as this feature has {entries}", f"Write {form} at {at}.")
    return rows


def check_gather(fields: Any, keys: str, field: Callable[[str], str]) -> None:
    """Raise invalid_field if a gather by key has data in the request, an axis other than 0, or `out_of_bounds`.

    `keys` is the pointer of the keys.
    """
    if not isinstance(fields.data, NamedTensor):
        detail = "keys select rows of a resident tensor, but the data is in the request"
        raise invalid_field(keys, detail, "Send 'indices', positions of rows, or name a resident tensor with keys.")
    if fields.parameter != 0:
        at = field("axis")
        raise invalid_field(
            at, "keys select rows, along axis 0", f"Write 0 at {at}, or send 'indices' in place of 'keys'."
        )
    check_no_out_of_bounds(fields, field)


def check_no_out_of_bounds(fields: Any, field: Callable[[str], str]) -> None:
    """Raise invalid_field if a request that has only keys sets `out_of_bounds`."""
    if "out_of_bounds" in fields.model_fields_set:
        at = field("out_of_bounds")
        hint = "Leave out 'out_of_bounds'; 'missing' says how to treat keys that the table lacks."
        raise invalid_field(at, "out_of_bounds is for indices; keys have no bounds", hint)
