"""Kinds of members that requests have in common, and the model that all requests derive from.

A request is validated once its arrays have been cut out (`envelope`): where one stood is its number, which
is what `ListNumber` and `TextNumber` take, though OpenAPI shows what the request itself has there.
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
"""Stands for a member that was left out. None of a native request may be null, but for `OrNull`."""
INT64: Final[dict[str, JsonValue]] = {"format": "int64"}


class Detail(str):
    """What an error says of a member whose value is none that it may have.

    "{name}" stands for the member, "{of}" for the object that it is a member of, "{value}" for its value.
    """

    __slots__ = ()


class Needed(Detail):
    """The same of a member that is missing, which otherwise is said to be missing and no more."""

    __slots__ = ()


class TooSmall(Detail):
    """The same of an integer that is smaller than it may be."""

    __slots__ = ()


class NotOffered(Detail):
    """What the error `not_implemented` says of a member that is part of a protocol and not offered here."""

    __slots__ = ()


class QueryText(str):
    """The text that a query has for a field and that is not a value of it, for the error."""

    __slots__ = ()


class FromText(NamedTuple):
    """How a query has a field whose value is not text: `parse` makes the value, or raises ValueError.

    `detail` is what an error says of another text, if that is not what it says of another value in JSON; OpenAPI shows
    `schema`, if given, and `note` at the end of the description.
    """

    parse: Callable[[str], Any]
    detail: Detail | None = None
    schema: dict[str, JsonValue] | None = None
    note: str = ""


class OrNull:
    """A member that is as if it were left out where it is null, which OpenAPI does not say."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        shown = handler(source)
        return core_schema.json_or_python_schema(json_schema=shown, python_schema=core_schema.nullable_schema(shown))


_DIMENSION_DIGITS: Final = 40


def _whole(value: Any, *, digits: int = MAX_DIGITS) -> Any:
    """The integer that a number written with a fraction or an exponent is, as 1.0 or 1e2; any other value as it is."""
    whole = integer(value, digits) if type(value) in FRACTIONAL else None
    return value if whole is None else whole


def _whole_sizes(sizes: Any) -> Any:
    """The same for each dimension of a shape, at most 10**40."""
    return [_whole(size, digits=_DIMENSION_DIGITS) for size in sizes] if type(sizes) is list else sizes


def _number(value: Any) -> Any:
    """The binary64 nearest to a JSON number; any other value as it is."""
    return float(value.text) if type(value) is Number else value


INTEGER: Final = Detail("{name} must be an integer")
BOOLEAN: Final = Detail("{name} must be true or false")
TRUE_OR_FALSE: Final = Detail("{name} must be one of true, false")
FINITE: Final = Detail("{name} must be a finite number")
JSON_TEXT: Final = Detail("{name} must be a string, the JSON text of a value")
LOOKUP_TEXT: Final = Detail("{name} must be a string, the JSON text of the request but for the arrays")
SIZES_TEXT: Final = Detail("{name} must be integers of 0 or more with commas between them")
FEATURES: Final = Detail("features must be a list of at least one feature")
DIMENSION: Final = Detail("a dimension must be an integer of 0 or more")
LIST_OF_SIZES: Final = Detail("{name} must be a list of integers")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_SIZES: Final = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{1,40})*+)?")
_DECIMAL: Final = re.compile(r"[-+]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_MOST_CHARACTERS: Final = 4000


def _integer_of_text(text: str) -> int | None:
    """The integer of a field, exactly, cut to ±10^4000."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("no integer")
    return integer(Number(text))


def _decimal_of_text(text: str) -> float:
    """The binary64 nearest to a decimal number."""
    if len(text) > _MOST_CHARACTERS or not _DECIMAL.fullmatch(text):
        raise ValueError("no number")
    return float(text)


def _sizes_of_text(text: str) -> tuple[int, ...]:
    """The sizes of a shape, with commas between them."""
    if len(text) > _MOST_CHARACTERS or not _SIZES.fullmatch(text):
        raise ValueError("no sizes")
    return tuple(map(int, text.split(","))) if text else ()


def _boolean_of_text(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("no boolean")
    return text == "true"


JsonInteger = Annotated[int, Strict(), BeforeValidator(_whole), INTEGER, FromText(_integer_of_text)]
"""Any integer, however large; true and false are none."""
JsonFinite = Annotated[
    float,
    Strict(),
    Field(allow_inf_nan=False),
    BeforeValidator(_number),
    WithJsonSchema({"type": "number", "format": "double"}),
    FINITE,
    FromText(_decimal_of_text),
]
JsonBool = Annotated[bool, Strict(), BOOLEAN, FromText(_boolean_of_text, TRUE_OR_FALSE)]
SIZES: Final = FromText(_sizes_of_text, SIZES_TEXT, {"type": "string"}, " Sizes with commas: `200000,64`.")
JSON_VALUE: Final = FromText(JsonText, None, {"type": "string"}, " JSON text.")
Size = Annotated[int, Strict(), Field(ge=0, json_schema_extra=INT64), DIMENSION]
Shape = Annotated[tuple[Size, ...], FailFast(), BeforeValidator(_whole_sizes), LIST_OF_SIZES]
JsonString = Annotated[str, Strict()]
TensorName = Annotated[
    JsonString,
    Field(pattern=REFERENCE_PATTERN),
    Detail(
        "a name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with none of . _ -, a version is a name, @ and a number"
    ),
]
"""The name of a tensor, `NAME@7` or an alias."""
DTypeName = Annotated[
    JsonString,
    WithJsonSchema({"type": "string", "enum": list(DTYPES)}),
    Needed("{of} needs a dtype, the name of a type"),
]
"""The name of a type. Whether there is a type of that name is looked up when all members have been validated, since it
has an error of its own, unsupported_dtype, which comes after those of members."""
VALUES: Final = (
    "The items in row-major order: numbers, true and false, strings, or [re, im] for complex types. "
    'Non-finite numbers are the strings "NaN", "Infinity" and "-Infinity". Lists nested as `shape` says are '
    "accepted too; then `shape` may be left out."
)
BASE64: Final = (
    "The items' row-major little-endian bytes in base64: bool one byte, 0 or 1; strings each a "
    "little-endian uint32 length and then UTF-8."
)
ListNumber = Annotated[int, WithJsonSchema({"type": "array", "items": {}, "description": VALUES})]
TextNumber = Annotated[int, WithJsonSchema({"type": "string", "description": BASE64})]
"""Numbers of arrays that have been cut out. Whether one was a list or a text is seen where it stood."""


def one_of(values: Iterable[str]) -> Any:
    """The type of a member that is one of `values`."""
    literal: Any = Literal
    return literal[tuple(values)]


def tidy(schema: dict[str, Any]) -> None:
    """An optional member is simply not required: no null, and what holds without it in words.

    Generators take a default for a member that is always there: TypeScript would ask for it in every request.
    """
    for member in schema.get("properties", {}).values():
        if "const" in member:  # one of a single value
            member["enum"] = [member.pop("const")]
        default = member.pop("default", None)
        if default is not None:
            member["description"] += f" If left out: {str(default).lower() if type(default) is bool else default}."
        member.pop("title", None)


class RequestModel(BaseModel):
    """An object of a native request: it has no other members.

    Members stand in the order in which they are refused, but that one that is unknown comes first.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra=tidy)
