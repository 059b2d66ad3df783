"""Types of request members, and the base model of all requests.

Requests are validated after their arrays have been cut out (`envelope`) and replaced by numbers. `ListNumber` and
`TextNumber` validate these numbers; OpenAPI shows the arrays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    JsonValue,
    WithJsonSchema,
)
from pydantic.types import FailFast, Strict
from pydantic_core import CoreSchema, core_schema

from app.json_text.lossless_json import FRACTIONAL, MAX_DIGITS, Number, integer
from app.requests.request import JsonText
from app.tensors.dtypes import DTYPES
from app.tensors.tensor_name import REFERENCE_PATTERN

ABSENT: Final[Any] = None
"""The value of a member that was left out. Members of native requests must not be null, unless marked `OrNull`."""
INT64: Final[dict[str, JsonValue]] = {"format": "int64"}


class Detail(str):
    """The message for a member with an invalid value.

    "{name}" stands for the member, "{of}" for the object that contains it, "{value}" for its value.
    """

    __slots__ = ()


class Needed(Detail):
    """The message for a missing member. The default is "NAME is missing"."""

    __slots__ = ()


class TooSmall(Detail):
    """The message for an integer below its minimum."""

    __slots__ = ()


class NotOffered(Detail):
    """The message of `not_implemented` for a member of a protocol that this service does not support."""

    __slots__ = ()


class QueryText(str):
    """Text of a query parameter that is not a valid value of its field. The error quotes it."""

    __slots__ = ()


class FromText(NamedTuple):
    """Specifies how to read a field from the text of a query parameter.

    `parse` returns the value or raises ValueError. `detail` is the message for invalid text; by default, it is the
    field's message for invalid JSON. OpenAPI shows `schema`, if given, and appends `note` to the description.
    """

    parse: Callable[[str], Any]
    detail: Detail | None = None
    schema: dict[str, JsonValue] | None = None
    note: str = ""


class OrNull:
    """Marks a member that may be null, which means the same as leaving it out. OpenAPI does not show this."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        shown = handler(source)
        return core_schema.json_or_python_schema(json_schema=shown, python_schema=core_schema.nullable_schema(shown))


_DIMENSION_DIGITS: Final = 40


def _as_integer(value: Any, *, digits: int = MAX_DIGITS) -> Any:
    """Convert a number with an integral value, such as 1.0 or 1e2, to an integer; return any other value unchanged."""
    whole = integer(value, digits) if type(value) in FRACTIONAL else None
    return value if whole is None else whole


def _as_sizes(sizes: Any) -> Any:
    """Apply `_as_integer` to each dimension of a shape, up to 10**40."""
    return [_as_integer(size, digits=_DIMENSION_DIGITS) for size in sizes] if type(sizes) is list else sizes


def _as_float(value: Any) -> Any:
    """Return the binary64 nearest to a JSON number; return any other value unchanged."""
    return float(value.text) if type(value) is Number else value


INTEGER: Final = Detail("{name} must be an integer")
BOOLEAN: Final = Detail("{name} must be true or false")
TRUE_OR_FALSE: Final = Detail("{name} must be one of true, false")
FINITE: Final = Detail("{name} must be a finite number")
JSON_TEXT: Final = Detail("{name} must be a string, the JSON text of a value")
LOOKUP_TEXT: Final = Detail("{name} must be a string, the JSON text of the request without the arrays")
SIZES_TEXT: Final = Detail("{name} must be integers of 0 or more with commas between them")
FEATURES: Final = Detail("features must be a list of at least one feature")
DIMENSION: Final = Detail("a dimension must be an integer of 0 or more")
LIST_OF_SIZES: Final = Detail("{name} must be a list of integers")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_SIZES: Final = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{1,40})*+)?")
_DECIMAL: Final = re.compile(r"[-+]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_MOST_CHARACTERS: Final = 4000


def _integer_of_text(text: str) -> int | None:
    """Return the exact integer, clamped to ±10^4000."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("no integer")
    return integer(Number(text))


def _decimal_of_text(text: str) -> float:
    """Return the binary64 nearest to a decimal number."""
    if len(text) > _MOST_CHARACTERS or not _DECIMAL.fullmatch(text):
        raise ValueError("no number")
    return float(text)


def _sizes_of_text(text: str) -> tuple[int, ...]:
    """Return the sizes of a shape written as `200000,64`."""
    if len(text) > _MOST_CHARACTERS or not _SIZES.fullmatch(text):
        raise ValueError("no sizes")
    return tuple(map(int, text.split(","))) if text else ()


def _boolean_of_text(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("no boolean")
    return text == "true"


JsonInteger = Annotated[int, Strict(), BeforeValidator(_as_integer), INTEGER, FromText(_integer_of_text)]
"""An integer of any size. true and false are not integers."""
JsonFinite = Annotated[
    float,
    Strict(),
    Field(allow_inf_nan=False),
    BeforeValidator(_as_float),
    WithJsonSchema({"type": "number", "format": "double"}),
    FINITE,
    FromText(_decimal_of_text),
]
JsonBool = Annotated[bool, Strict(), BOOLEAN, FromText(_boolean_of_text, TRUE_OR_FALSE)]
SIZES: Final = FromText(_sizes_of_text, SIZES_TEXT, {"type": "string"}, " Sizes with commas: `200000,64`.")
JSON_VALUE: Final = FromText(JsonText, None, {"type": "string"}, " JSON text.")
Size = Annotated[int, Strict(), Field(ge=0, json_schema_extra=INT64), DIMENSION]
Shape = Annotated[tuple[Size, ...], FailFast(), BeforeValidator(_as_sizes), LIST_OF_SIZES]
JsonString = Annotated[str, Strict()]
TensorName = Annotated[
    JsonString,
    Field(pattern=REFERENCE_PATTERN),
    Detail(
        "a name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with none of . _ -, a version is a name, @ and a number"
    ),
]
"""The name of a tensor, `NAME@7`, or an alias."""
DTypeName = Annotated[
    JsonString,
    WithJsonSchema({"type": "string", "enum": list(DTYPES)}),
    Needed("{of} needs a dtype, the name of a type"),
]
"""The name of an element type. Whether the type exists is checked after all members have been validated, because its
error, unsupported_dtype, comes after errors of members."""
VALUES: Final = (
    "The items in row-major order: numbers, true and false, strings, or [re, im] for complex types. Non-finite numbers "
    'are the strings "NaN", "Infinity" and "-Infinity". Lists nested like `shape` are also accepted; in that '
    "case, `shape` may be omitted."
)
BASE64: Final = (
    "The items in base64, row-major and little-endian. A bool is one byte, 0 or 1. A string is its length as "
    "uint32, then its UTF-8."
)
ListNumber = Annotated[int, WithJsonSchema({"type": "array", "items": {}, "description": VALUES})]
TextNumber = Annotated[int, WithJsonSchema({"type": "string", "description": BASE64})]
"""Indices of arrays that have been cut out: `ListNumber` replaces a list, and `TextNumber` replaces text."""


def one_of(values: Iterable[str]) -> Any:
    """Return the type of a member that must be one of `values`."""
    literal: Any = Literal
    return literal[tuple(values)]


def simplify_schema(schema: dict[str, Any]) -> None:
    """Show an optional member as not required, never as null, and state its default in the description.

    Generators treat a member with a default as always present: TypeScript would require it in every request.
    """
    for member in schema.get("properties", {}).values():
        if "const" in member:  # one of a single value
            member["enum"] = [member.pop("const")]
        default = member.pop("default", None)
        if default is not None:
            member["description"] += f" If omitted: {str(default).lower() if type(default) is bool else default}."
        member.pop("title", None)


class RequestModel(BaseModel):
    """An object of a native request; unknown members are errors.

    Errors are reported in the order of the members, after an unknown member.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=simplify_schema)
