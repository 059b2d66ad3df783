"""What the native JSON codec must make of any body, written once more with Python's own JSON and plain loops."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from fractions import Fraction
from math import isinf
from typing import Any, Literal, NoReturn, cast

import ml_dtypes
import numpy as np
import pybase64
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import DEVICES, Call
from app.tensors.little_endian_items import (
    PackedItemError,
    PackedSizeError,
    bounded_product,
    check_packed,
    unpack,
)
from app.tensors.operator_signature import OperatorName, Signature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Form, Tensor, coordinates
from tests.wire.float8_reference import FLOAT8, nearest, number_of

Encoding = Literal["values", "base64"]
MAX_DEPTH = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NONFINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_HUGE = 10**4000


class Number(str):
    """A JSON number as it was written."""


class _Bad(Exception):
    pass


def read_call(body: Buffer, signature: Signature, limits: Limits) -> tuple[Call, Encoding]:
    """The call that `body` asks for, and how its answer is to be encoded. Raises GatherError."""
    operator, dialects = signature.operator, signature.dialects
    document = _parse(body)
    if not isinstance(document, dict):
        raise _field("", "the body must be a JSON object")
    parameter_name = "batch_dims" if operator == "gathernd" else "axis"
    known = ("data", "indices", parameter_name, "dialect", "device", "output_encoding")
    for name in document:
        if name not in known:
            raise _field("/" + _escape(name), f"{name!a} is not a field of this request")
    data = _fields(document, "data", resident=True)
    indices = _fields(document, "indices", resident=False)
    assert not isinstance(indices, str)
    parameter = 0
    if parameter_name in document:
        whole = integer(document[parameter_name])
        if whole is None:
            raise _field("/" + parameter_name, f"{parameter_name} must be an integer")
        parameter = whole
    dialect = _choice(document, "dialect", dialects, "onnx-13")
    device = _choice(document, "device", DEVICES, "auto")
    encoding = _choice(document, "output_encoding", ("values", "base64"), "values")

    tensors = [(name, fields) for name, fields in (("data", data), ("indices", indices)) if not isinstance(fields, str)]
    for name, fields in tensors:
        if fields["dtype"] not in DTYPES:
            raise GatherError(
                "unsupported_dtype", f"{fields['dtype']!a} is not an element type", pointer=f"/{name}/dtype"
            )
    counted = [(name, fields, _count(name, fields)) for name, fields in tensors]
    made = {name: _tensor(name, fields, *rest) for name, fields, rest in counted}
    for name, tensor in made.items():
        if tensor.dtype.kind == "string" and name == "data":  # indices of strings are refused for their type
            item = next((i for i, text in enumerate(tensor.array) if len(text.encode()) > limits.string_bytes), -1)
            if item >= 0:
                raise GatherError(
                    "limit_exceeded",
                    f"a string of {name} is longer than {limits.string_bytes} bytes",
                    places=[Place(tensor.locate(item), coordinates(item, tensor.shape))],
                    facts={"limit": "string_bytes", "maximum": limits.string_bytes},
                )
    call = Call(
        cast(OperatorName, operator),
        data if isinstance(data, str) else made["data"],
        made["indices"],
        (parameter,),
        dialect,
        device,
    )
    return call, encoding


def _field(pointer: str, detail: str) -> GatherError:
    return GatherError("invalid_field", detail, pointer=pointer)


def _malformed(detail: str) -> NoReturn:
    raise GatherError("malformed_request", detail)


def _escape(name: str) -> str:
    return name.encode("utf-8", "replace").decode().replace("~", "~0").replace("/", "~1")


def _parse(body: Buffer) -> Any:
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError as error:
        _malformed(f"the body is not UTF-8 at byte {error.start}")
    depth = 0
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', text, re.DOTALL):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                _malformed(f"the body nests deeper than {MAX_DEPTH}")
        elif token[0] in "]}":
            depth -= 1
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=_constant
        )
    except ValueError as error:
        _malformed(f"the body is not JSON: {error}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        _malformed("a key is given twice")
    return made


def _constant(name: str) -> NoReturn:
    _malformed(f"{name} is not JSON; write it as a string")


def integer(value: Any) -> int | None:
    """The integer a JSON number is, exactly, cut to ±10^4000; None where it is none."""
    if not isinstance(value, Number):
        return None
    match = re.fullmatch(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?", value)
    assert match
    sign, whole, part, exponent_sign, exponent_text = match.groups(default="")
    digits = (whole + part).rstrip("0").lstrip("0")
    if not digits:
        return 0
    exponent = int(exponent_text[:20] or "0") * (-1 if exponent_sign == "-" else 1)
    exponent += len(whole + part) - len((whole + part).rstrip("0")) - len(part)
    if exponent < 0:
        return None
    made = _HUGE if len(digits) + exponent > 4000 else int(digits) * 10**exponent
    return -made if sign else made


def _choice(document: dict[str, Any], name: str, allowed: Collection[Any], default: Any) -> Any:
    value = document.get(name, default)
    if type(value) is not str or value not in allowed:
        raise _field("/" + name, f"{name} must be one of {', '.join(allowed)}")
    return value


def _fields(document: dict[str, Any], name: str, resident: bool) -> dict[str, Any] | str:
    if name not in document:
        raise _field("/" + name, f"{name} is missing")
    fields = document[name]
    if not isinstance(fields, dict):
        raise _field("/" + name, f"{name} must be an object")
    if resident and "tensor" in fields:
        for other in fields:
            if other != "tensor":
                raise _field(f"/{name}/{_escape(other)}", "a resident tensor is named by 'tensor' alone")
        key = fields["tensor"]
        if type(key) is not str or not _NAME.fullmatch(key):
            raise _field(f"/{name}/tensor", "the name of a resident tensor is 1 to 128 of A-Z a-z 0-9 . _ -")
        return key
    for other in fields:
        if other not in ("dtype", "shape", "values", "base64"):
            raise _field(f"/{name}/{_escape(other)}", f"{other!a} is not a field of a tensor")
    if type(fields.get("dtype")) is not str:
        raise _field(f"/{name}/dtype", "dtype must be given, as a string")
    if "shape" in fields:
        if not isinstance(fields["shape"], list):
            raise _field(f"/{name}/shape", "shape must be a list of integers")
        shape = []
        for axis, size in enumerate(fields["shape"]):
            whole = integer(size)
            if whole is None or whole < 0:
                raise _field(f"/{name}/shape/{axis}", "a dimension must be an integer of 0 or more")
            shape.append(whole)
        fields["shape"] = tuple(shape)
    if ("values" in fields) == ("base64" in fields):
        raise _field("/" + name, "exactly one of values and base64 must be given")
    if "values" in fields:
        if fields["values"] is None or isinstance(fields["values"], dict):
            raise _field(f"/{name}/values", "values must be a list")
    else:
        if type(fields["base64"]) is not str:
            raise _field(f"/{name}/base64", "base64 must be a string")
        if "shape" not in fields:
            raise _field(f"/{name}/shape", "base64 needs a shape")
        try:
            fields["base64"] = pybase64.b64decode(fields["base64"].encode(), validate=True)
        except ValueError:
            raise _field(f"/{name}/base64", "the text is not base64") from None
    return fields


def _nesting(values: Any) -> list[int]:
    dims = []
    while isinstance(values, list):
        dims.append(len(values))
        if not values:
            break
        values = values[0]
    return dims


def _follows(values: Any, dims: Sequence[int]) -> bool:
    if not dims:
        return not isinstance(values, list)
    return isinstance(values, list) and len(values) == dims[0] and all(_follows(value, dims[1:]) for value in values)


def _leaves(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for value in values:
            yield from _leaves(value)
    else:
        yield values


def _count(name: str, fields: dict[str, Any]) -> tuple[tuple[int, ...], Form]:
    """The shape of a tensor and the form of its values; raises element_count_mismatch."""
    dtype: DType = DTYPES[fields["dtype"]]
    if "base64" in fields:
        try:
            check_packed(dtype, fields["shape"], fields["base64"])
        except PackedSizeError as error:
            raise GatherError("element_count_mismatch", str(error), pointer=f"/{name}/base64") from None
        return fields["shape"], "whole"
    values, shape = fields["values"], fields.get("shape")
    pair = [2] if dtype.kind == "complex" else []
    dims = _nesting(values)
    wrong = GatherError("element_count_mismatch", "the values do not match the shape", pointer=f"/{name}/values")
    if shape is None:
        if not _follows(values, dims):
            raise wrong
        if pair and 0 not in dims:
            if not dims or dims[-1] != 2:
                raise wrong
            dims.pop()
        return tuple(dims), "flat" if len(dims) == 1 else "nested"
    count = bounded_product(shape, 2**63)
    rank, depth = len(shape), len(dims)
    if count == 0:
        zero = shape.index(0)
        if values == []:
            return shape, "flat"
        wanted, form = [*shape[: zero + 1]], "nested"
    elif depth == 1 + len(pair):
        wanted, form = [count, *pair], "flat"
    else:
        wanted, form = [*shape, *pair], "nested"
    if len(wanted) != depth or not _follows(values, wanted):
        raise wrong
    return shape, "nested" if rank == 0 and form == "nested" else form  # type: ignore[return-value]


def _tensor(name: str, fields: dict[str, Any], shape: tuple[int, ...], form: Form) -> Tensor:
    dtype: DType = DTYPES[fields["dtype"]]
    pointer = f"/{name}/base64" if "base64" in fields else f"/{name}/values"
    tensor = Tensor(dtype, shape, np.empty(0), pointer, form, f"/{name}/shape", f"/{name}/dtype")
    if "base64" in fields:
        try:
            tensor.array = _unpacked(dtype, shape, fields["base64"])
        except PackedItemError as error:
            place = Place(pointer, coordinates(error.item, shape), error.value)
            raise GatherError("value_not_representable", str(error), places=[place]) from None
        return tensor
    width = 2 if dtype.kind == "complex" else 1
    made = []
    for number, leaf in enumerate(_leaves(fields["values"])):
        try:
            made.append(_item(dtype, leaf))
        except _Bad:
            item, part = divmod(number, width)
            where = tensor.locate(item) + (f"/{part}" if width == 2 else "")
            place = Place(where, coordinates(item, shape), _shown(leaf))
            raise GatherError(
                "value_not_representable", f"{name} has a value that {dtype.name} cannot hold", places=[place]
            ) from None
    tensor.array = _array(dtype, made)
    return tensor


def _shown(leaf: Any) -> int | float | str | None:
    """A value for an error's body: what JSON with 64-bit integers can say, the text of other numbers."""
    if isinstance(leaf, Number):
        if re.fullmatch("-?[0-9]+", leaf):
            if len(leaf) < 25 and -(2**63) <= int(leaf) < 2**64:
                return int(leaf)
        elif not isinf(float(leaf)):
            return float(leaf)
        return leaf if len(leaf) <= 64 else leaf[:64] + "…"
    if isinstance(leaf, str):
        text = leaf.encode("utf-8", "replace").decode()
        return text if len(text) <= 64 else text[:64] + "…"
    return leaf if isinstance(leaf, bool) else None


def _item(dtype: DType, leaf: Any) -> Any:
    if dtype.kind == "bool":
        if isinstance(leaf, bool):
            return leaf
    elif dtype.kind == "string":
        if type(leaf) is str:
            try:
                leaf.encode()
            except UnicodeEncodeError:
                raise _Bad from None
            return leaf
    elif type(leaf) is Number:
        if dtype.kind in ("int", "uint"):
            whole = integer(leaf)
            if whole is not None and dtype.low <= whole <= dtype.high:
                return whole
        elif dtype.name in FLOAT8:
            bits = None if isinf(float(leaf)) else nearest(dtype.name, abs(Fraction(leaf)), leaf.startswith("-"))
            if bits is not None:
                number = number_of(dtype.name, bits)
                return -0.0 if bits == 0x80 and not number else float(number)
        else:
            value = float(leaf)
            if not isinf(value) and not isinf(_narrow(dtype, value)):
                return value
    elif type(leaf) is str and dtype.kind in ("float", "complex") and leaf in _NONFINITE:
        if leaf != "NaN" and dtype.name in ("float8_e4m3fn", "float8_e8m0fnu"):
            raise _Bad
        return _NONFINITE[leaf]
    raise _Bad


def _narrow(dtype: DType, value: float) -> float:
    return float(_floats(dtype, np.array([value]))[0].real)


def _unpacked(dtype: DType, shape: tuple[int, ...], raw: bytes) -> NDArray[Any]:
    if dtype.kind != "string":
        return unpack(dtype, shape, raw).array
    texts, place = [], 0
    while place < len(raw):
        text = place + 4
        place = text + int.from_bytes(raw[place:text], "little")
        try:
            texts.append(raw[text:place].decode())
        except UnicodeDecodeError:
            raise PackedItemError("a string is not UTF-8", len(texts), None) from None
    return _array(dtype, texts)


def _floats(dtype: DType, values: NDArray[np.float64]) -> NDArray[Any]:
    if dtype.name == "bfloat16":
        return to_bfloat16(values)
    with np.errstate(over="ignore"):
        if dtype.name == "complex64":
            return values.astype(np.float32)
        return values.astype("f8" if dtype.name == "complex128" else dtype.numpy)


def to_bfloat16(values: NDArray[np.float64]) -> NDArray[Any]:
    """`values` rounded once, half to even: through the float32 rounded to odd, which loses nothing."""
    with np.errstate(over="ignore"):
        near = values.astype(np.float32)
    bits = near.view(np.uint32).copy()
    inexact = (near != values) & np.isfinite(near) & np.isfinite(values)
    away = inexact & (np.abs(near.astype(np.float64)) > np.abs(values))
    bits[away] -= 1
    bits[inexact] |= 1
    over = np.isinf(near) & np.isfinite(values)
    bits[over] = (bits[over] & 0x80000000) | 0x7F7FFFFF
    nan = np.isnan(values)
    top = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    top[nan] = 0x7FC0
    return top.astype(np.uint16).view(ml_dtypes.bfloat16)


def _array(dtype: DType, made: list[Any]) -> NDArray[Any]:
    if dtype.kind in ("float", "complex"):
        return _floats(dtype, np.array(made, np.float64)).view(dtype.numpy)
    array: NDArray[Any] = np.empty(len(made), dtype.numpy)
    array[:] = made
    return array
