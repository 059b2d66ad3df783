"""Request values that have the type of a tensor, such as `fill_value`. The type is not known when they are parsed.

In a JSON body, such a value is a JSON value; in a query or a parameter of the inference protocol, it is JSON text.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from app.errors import GatherError, Place, invalid_field
from app.json_text import grammar, lossless_json
from app.json_text.read_values import values_of
from app.requests.request import JsonText
from app.tensors.dtypes import DType
from app.tensors.tensor import Tensor

_QUOTED: Final = '"none"'


class JsonItem(NamedTuple):
    """The JSON value of the `name` field of a request, at `pointer`."""

    value: Any
    pointer: str
    name: str = "fill_value"

    def item(self, dtype: DType) -> Tensor:
        """Convert the value to one item of `dtype`; complex values are `[re, im]`. Raises value_not_representable.

        Implements `app.tensors.by_key.ItemOfRequest`.
        """
        text = f"[{lossless_json.text_of(self.value)}]".encode()
        depth = len(text) - len(text.lstrip(b"["))
        try:
            return values_of(self.name, dtype, (1,)).read(np.frombuffer(text, np.uint8), 0, len(text), depth)
        except GatherError:
            shown = lossless_json.shown(self.value)
            what = "a list, an object or null" if shown is None else repr(shown)
            raise GatherError(
                "value_not_representable",
                f"{self.name} is {what}, which {dtype.name} cannot hold",
                places=[Place(self.pointer, value=shown)],
                hint=f"{_form(dtype)} at {self.pointer}, since the type is {dtype.name}.",
            ) from None


def given_fill_value(fields: Any, mode: str, pointer: str, asked_by: str = "out_of_bounds") -> JsonItem | None:
    """Return the fill value in valid fields, or None if there is none.

    `mode` is the value of the `asked_by` field. Raises invalid_field if there is a fill value although `mode` is not
    fill, or if it is text that is not JSON.
    """
    if "fill_value" not in fields.model_fields_set:
        return None
    if mode != "fill":
        beside = f"{pointer.removesuffix('/fill_value')}/{asked_by}"
        hint = f"Write 'fill' at {beside}, or leave out 'fill_value'."
        raise invalid_field(pointer, f"fill_value is for {asked_by} fill only", hint)
    return JsonItem(json_value(fields.fill_value, "fill_value", pointer), pointer)


def json_value(value: Any, name: str, pointer: str) -> Any:
    """Parse the value if it is JSON text, else return it. Raises invalid_field for text that is not JSON."""
    if type(value) is JsonText:
        try:
            value = grammar.value_of(value)
        except grammar.FramingFault:
            hint = f"Write JSON text at {pointer}, such as 0, or {_QUOTED} with its quotes where data is of strings."
            raise invalid_field(pointer, f"{name} must be the text of a JSON value", hint) from None
    return value


def _form(dtype: DType) -> str:
    """Describe how to write an item of a type, with an example in JSON."""
    if dtype.kind == "string":
        return 'Write a string, such as "none",'
    if dtype.kind == "bool":
        return "Write true or false, such as false,"
    if dtype.kind == "complex":
        return "Write a list of real and imaginary part, such as [0, 0],"
    if dtype.kind in ("int", "uint"):
        return f"Write a whole number from {dtype.low} to {dtype.high}, such as 0,"
    return f'Write a number that {dtype.name} can hold, such as 0, or "NaN",'
