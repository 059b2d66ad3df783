"""Kinds of members that requests have in common, and the model that all requests derive from.

A request is validated once its arrays have been cut out (`envelope`): where one stood is its number, which
is what `ListNumber` and `TextNumber` take, though OpenAPI shows what the request itself has there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic.types import FailFast, Strict
from pydantic_core import CoreSchema, core_schema

from app.errors import GatherError
from app.json_text.lossless_json import FRACTIONAL, Number, dimensions, integer
from app.requests.request import JsonText
from app.tensors.dtypes import DTYPES
from app.tensors.tensor_name import REFERENCE_PATTERN

ABSENT: Final[Any] = None
"""Stands for a member that was left out. None of a native request may be null, but for `OrNull`."""
INT64: Final[dict[str, JsonValue]] = {"format": "int64"}


RESIDENT: Final = "Name of a resident tensor, which stands for its current version, `NAME@7` for version 7, or an alias"
"""What OpenAPI says of a member that names a resident tensor."""


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


class _OrNumber:
    """An integer may be written with a fraction or an exponent, as 1.0 or 1e2: then it is one of `FRACTIONAL`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [handler(source), core_schema.no_info_plain_validator_function(_exact_integer)],
            mode="left_to_right",
            custom_error_type="integer",
            custom_error_message="no integer",
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema["choices"][0])


def _exact_integer(value: Any) -> int:
    whole = integer(value) if type(value) in FRACTIONAL else None
    if whole is None:
        raise ValueError("no integer")
    return whole


class _OrNumbers(_OrNumber):
    """The same for the dimensions of a shape; which one is wrong `dimensions` finds again for the error."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [handler(source), core_schema.no_info_plain_validator_function(_exact_shape)],
            mode="left_to_right",
            custom_error_type=WRONG_SHAPE,
            custom_error_message="no shape",
        )


_FEW: Final = 8
"""Dimensions up to which it takes no longer to look at each than to look for one of `FRACTIONAL`."""
WRONG_SHAPE: Final = "shape"
"""The type of pydantic's error for a shape."""


def _exact_shape(sizes: Any) -> tuple[int, ...]:
    if type(sizes) is not list or (len(sizes) > _FEW and FRACTIONAL.isdisjoint(map(type, sizes))):
        raise ValueError("no shape, or one without numbers that could be integers")
    try:
        shape = dimensions(sizes)
    except GatherError:
        raise ValueError("too many numbers that are no plain integers") from None
    if isinstance(shape, int):
        raise ValueError("no shape")
    return shape


INTEGER: Final = Detail("{name} must be an integer")
BOOLEAN: Final = Detail("{name} must be true or false")
TRUE_OR_FALSE: Final = Detail("{name} must be one of true, false")
FINITE: Final = Detail("{name} must be a finite number")
JSON_TEXT: Final = Detail("{name} must be a string, the JSON text of a value")
LOOKUP_TEXT: Final = Detail("{name} must be a string, the JSON text of the request but for the arrays")
SIZES_TEXT: Final = Detail("{name} must be integers of 0 or more with commas between them")
FEATURES: Final = Detail("features must be a list of at least one feature")
LIST_OF_SIZES: Final = Detail("{name} must be a list of integers")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_SIZES: Final = re.compile(r"(?:[0-9]{1,40}(?:,[0-9]{1,40})*+)?")
_DECIMAL: Final = re.compile(r"[-+]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?")
_MOST_CHARACTERS: Final = 4000
_HUGE: Final = 10**_MOST_CHARACTERS


def _integer_of_text(text: str) -> int:
    """The integer of a field, exactly, cut to ±10^4000."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("no integer")
    if len(text) > _MOST_CHARACTERS:
        digits = text.lstrip("-0")
        if len(digits) > _MOST_CHARACTERS:
            return -_HUGE if text[0] == "-" else _HUGE
        text = ("-" if text[0] == "-" else "") + (digits or "0")
    return int(text)


def _finite(value: Any) -> float:
    """The binary64 nearest to a JSON number."""
    if type(value) is Number:
        number = float(value.text)
    elif type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("no finite number") from None
    else:
        raise ValueError("no number")
    if not isfinite(number):
        raise ValueError("no finite number")
    return number


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


JsonInteger = Annotated[int, Strict(), _OrNumber(), INTEGER, FromText(_integer_of_text)]
"""Any integer, however large; true and false are none."""
JsonFinite = Annotated[
    float,
    PlainValidator(_finite),
    WithJsonSchema({"type": "number", "format": "double"}),
    FINITE,
    FromText(_decimal_of_text),
]
JsonBool = Annotated[bool, Strict(), BOOLEAN, FromText(_boolean_of_text, TRUE_OR_FALSE)]
SIZES: Final = FromText(_sizes_of_text, SIZES_TEXT, {"type": "string"}, " Sizes with commas: `200000,64`.")
JSON_VALUE: Final = FromText(JsonText, None, {"type": "string"}, " JSON text.")
Size = Annotated[int, Strict(), Field(ge=0, json_schema_extra=INT64)]
Shape = Annotated[tuple[Size, ...], FailFast(), _OrNumbers(), LIST_OF_SIZES]
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
