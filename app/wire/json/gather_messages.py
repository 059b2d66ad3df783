"""The native JSON codec: the body of `POST /gathernd` and `POST /gather` to a `Call`, an `Answer` to its body.

A body is read in three steps: `find_arrays` finds the values of the tensors and cuts them out, a JSON library reads the
rest (`json_envelope`), and `read_values` reads the values straight into arrays. Whatever is refused is held against the
whole grammar (`grammar_and_duplicate_keys`) first, for what is no JSON is refused as that, wherever else it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
import pybase64
from numpy.typing import NDArray

from app import llvm_intrinsics
from app.bounded_cache import BoundedCache
from app.errors import GatherError, Place
from app.tensors import string_frames, utf8
from app.tensors.buffer import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import DEVICES, ENCODINGS, Call, Device, Encoding
from app.tensors.operator_signature import DEFAULT_DIALECT, PARAMETERS, Signature
from app.tensors.scatter_call import REDUCTIONS, ScatterCall
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import HEAD
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates
from app.tensors.tensor_name import TENSOR_NAME
from app.wire.json import (
    characters,
    find_arrays,
    format_float,
    grammar_and_duplicate_keys,
    lossless_json,
    parse_float,
    parse_number_arrays,
    parse_string,
    write_strings,
)
from app.wire.json.find_arrays import ESCAPED, STRING, ArrayPlace, FoundArrays, scan_tensors
from app.wire.json.json_envelope import read_envelope
from app.wire.json.read_base64 import Packed
from app.wire.json.read_values import FlatList, Values, flat_list
from app.wire.json.write_values import is_long, values_text, write_answer
from app.wire.little_endian_items import REFUSED_BY_CHARGE, Charge, view_of

__all__ = [
    "configure",
    "is_long",
    "read_call",
    "read_scatter",
    "warm",
    "write_answer",
]

_BYTE: Final = np.dtype(np.uint8)
_COMMON: Final = frozenset(("data", "indices", "dialect", "device", "output_encoding"))
_FIELDS: Final[Mapping[str, frozenset[str]]] = {parameter: _COMMON | {parameter} for parameter in PARAMETERS}
_SCATTER_FIELDS: Final = frozenset(("indices", "updates", "reduction"))
_TENSOR_FIELDS: Final = frozenset(("dtype", "shape", "values", "base64"))
_COMPILED: Final[tuple[Any, ...]] = (
    find_arrays.scan_tensors,
    grammar_and_duplicate_keys.check,
    parse_number_arrays.read_elements,
    string_frames.read_frames,
    string_frames.frames_size,
    string_frames.first_longer,
    string_frames.copy_frames,
    write_strings.write_strings,
    format_float.write_singles,
)
_NO_INTS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
_ANY_TYPE: Final = DTYPES["bool"]
"""Stands for a type that does not exist, until everything else has been looked at."""


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is read."""
    llvm_intrinsics.keep_compiled(
        cache_dir, "json", (llvm_intrinsics, characters, parse_float, parse_string, utf8), _COMPILED
    )


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, all that reading and writing ever use."""
    started = perf_counter()
    body = b'{"data": {"dtype": "int8", "values": [1]}, "indices": {"dtype": "int64", "values": [0]}}'
    read_call(body, _WARMING, Limits())
    values_text(Tensor(DTYPES["float32"], (1,), np.ones(1, np.float32)))
    grammar_and_duplicate_keys.fault(body)
    strings = Packed("warm", DTYPES["string"], (1,), b"\1\0\0\0a").read()
    assert isinstance(strings, PackedStrings)
    strings.first_longer(1)
    strings.packed()
    values_text(strings)
    for function in _COMPILED:
        function.disable_compile()  # a request never compiles
    if progress is not None:
        progress(f"JSON codec ready after {perf_counter() - started:.2f} s")


_WARMING: Final = Signature("gathernd", "batch_dims", (DEFAULT_DIALECT,))
_Given = tuple[Values | Packed, str | None, int]
"""A tensor of the request, its fields checked: its items, its dtype if that is no type, and how many members it has."""


class _WrongTensors(Exception):
    """The values of these tensors do not match shape or type; how, is to be found out."""

    def __init__(self, sources: list[Values | Packed]) -> None:
        super().__init__()
        self.sources = sources


def read_call(
    body: Buffer, signature: Signature, limits: Limits, charge: Charge | None = None
) -> tuple[Call, Encoding]:
    """The call that `body` asks of an operator, and how its answer is to be written. Raises GatherError.

    What is wrong is refused in this order: malformed_request; invalid_field; unsupported_dtype, for a name that is no
    type; element_count_mismatch; value_not_representable; of the last three data before indices. A string that is too
    long is left in the call's `over_limit`, for others come before it.
    `charge` is told what the items will take, in bytes, before they do; what it raises is raised.
    """
    try:
        return _read_call(body, signature, limits, charge)
    except (GatherError, _WrongTensors) as error:
        _explain(error, body, charge)
        raise


def _read_call(body: Buffer, signature: Signature, limits: Limits, charge: Charge | None) -> tuple[Call, Encoding]:
    view = np.frombuffer(body, _BYTE)
    if type(body) is not bytes:
        view.flags.writeable = False  # as `view_of`
    closed, members, nontrivial_numbers, arrays, places = scan_tensors(view)
    text = None
    if closed and not nontrivial_numbers:
        text = _short_envelope(body, arrays, places)
        if text is not None:
            template = _templates.get((signature, text))
            if template is not None and template.members == members:
                return _fill(template, signature, body, view, places, limits, charge)
    document = _read_envelope(body, FoundArrays(closed, members, nontrivial_numbers, arrays, places), charge)
    if type(document) is not dict:
        raise _field("", "the body must be a JSON object")
    parameter_name = signature.parameter
    if not document.keys() <= _FIELDS[parameter_name]:
        raise _unknown("", document, _FIELDS[parameter_name])
    fields = document.get("data")
    resident = _resident(fields) if type(fields) is dict and "tensor" in fields else None
    data, data_unknown, data_members = (
        _given("data", document, body, view, places, charge) if resident is None else (None, None, 1)
    )
    indices, index_unknown, index_members = _given("indices", document, body, view, places, charge)
    parameter = document.get(parameter_name, 0)
    if type(parameter) is not int:
        parameter = lossless_json.integer(parameter)
        if parameter is None:
            raise _field(signature.pointer, f"{parameter_name} must be an integer")
    dialect = document.get("dialect", signature.default_dialect)
    if type(dialect) is not str or dialect not in signature.dialects:
        raise _choice("dialect", signature.dialects)
    device = document.get("device", "auto")
    if type(device) is not str or device not in DEVICES:
        raise _choice("device", DEVICES)
    encoding = document.get("output_encoding", "values")
    if type(encoding) is not str or encoding not in ENCODINGS:
        raise _choice("output_encoding", ENCODINGS)
    if len(document) + data_members + index_members != members:
        _check_framing(body, charge)

    if data_unknown is not None:
        raise _unsupported("data", data_unknown)
    if index_unknown is not None:
        raise _unsupported("indices", index_unknown)
    data_tensor = resident if data is None else data.read(charge)
    index_tensor = indices.read(charge)
    if data_tensor is None or index_tensor is None:
        raise _WrongTensors([source for source in (data, indices) if source is not None])
    call = Call(signature.operator, data_tensor, index_tensor, parameter, dialect, device, signature.pointer)
    if len(body) > limits.string_bytes and type(data_tensor) is PackedStrings:
        call.over_limit = _too_long(data_tensor, limits)
    if text is not None and (data is None or type(data) is Values) and type(indices) is Values:
        places_of = {place[0]: number for number, place in enumerate(places)}
        kept = resident if data is None else _array("data", data, places_of)
        assert kept is not None
        _templates[signature, text] = _Template(
            members,
            kept,
            _array("indices", indices, places_of),
            parameter,
            dialect,
            device,
            encoding,
        )
    return call, encoding


class _Array(NamedTuple):
    """An array of a template: which one of those found it is, the tensor's type and shape, and how a flat list of it is
    read.
    """

    number: int
    dtype: DType
    shape: tuple[int, ...] | None
    flat: FlatList | None


def _array(name: str, values: Values, places_of: Mapping[int, int]) -> _Array:
    dtype, shape = values.dtype, values.shape
    return _Array(places_of[values.first], dtype, shape, flat_list(name, dtype, shape))


class _Template(NamedTuple):
    """What all but the values of a request said: requests that differ in nothing else are checked once.

    `data` is a str if it is a resident tensor.
    """

    members: int
    data: str | _Array
    indices: _Array
    parameter: int
    dialect: str
    device: Device
    encoding: Encoding


_templates: Final[BoundedCache[tuple[Signature, bytes], _Template]] = BoundedCache(1024)
_TEMPLATE_BYTES: Final = 1 << 10
"""Of the longest envelope that is kept: those of the specification's examples have 120 to 200."""


def _short_envelope(body: Buffer, arrays: int, places: Sequence[ArrayPlace]) -> bytes | None:
    """All but the arrays, where that is short and the arrays are lists, else None."""
    first, end, kind = places[0]
    if arrays == 2:
        other, other_end, other_kind = places[1]
        if len(body) - end + first - other_end + other <= _TEMPLATE_BYTES and kind > 0 and other_kind > 0:
            return b"".join((body[:first], b"0 ", body[end:other], b"1 ", body[other_end:]))
    elif arrays == 1 and len(body) - end + first <= _TEMPLATE_BYTES and kind > 0:
        return b"".join((body[:first], b"0 ", body[end:]))
    return None


def _fill(
    template: _Template,
    signature: Signature,
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    limits: Limits,
    charge: Charge | None,
) -> tuple[Call, Encoding]:
    """The call of a request whose template is known: only its values are read."""
    _, kept, index_array, parameter, dialect, device, encoding = template
    data_tensor = kept if isinstance(kept, str) else _read_array("data", kept, view, places, charge)
    index_tensor = _read_array("indices", index_array, view, places, charge)
    if isinstance(data_tensor, Values) or isinstance(index_tensor, Values):
        raise _WrongTensors([given for given in (data_tensor, index_tensor) if isinstance(given, Values)])
    call = Call(signature.operator, data_tensor, index_tensor, parameter, dialect, device, signature.pointer)
    if len(body) > limits.string_bytes and type(data_tensor) is PackedStrings:
        call.over_limit = _too_long(data_tensor, limits)
    return call, encoding


def _read_array(
    name: str, array: _Array, view: NDArray[np.uint8], places: Sequence[ArrayPlace], charge: Charge | None
) -> Tensor | Values:
    """The tensor `name` of a request whose template is known, or its values where something is wrong with them."""
    number, dtype, shape, flat = array
    first, end, depth = places[number]
    if flat is not None and depth == 1:
        tensor = flat.read(view, first, end, charge)
        if tensor is not None:
            return tensor
        charge = None  # what was charged stays charged
    values = Values(view, name, dtype, shape, first, end, depth)
    return values.read(charge) or values


def read_scatter(body: Buffer, limits: Limits, charge: Charge | None = None) -> ScatterCall:
    """The scatter that `body` asks for: indices, updates and reduction. See `read_call` for order and `charge`."""
    try:
        return _read_scatter(body, limits, charge)
    except (GatherError, _WrongTensors) as error:
        _explain(error, body, charge)
        raise


def _read_scatter(body: Buffer, limits: Limits, charge: Charge | None) -> ScatterCall:
    view = view_of(body)
    found = FoundArrays._make(scan_tensors(view))
    document = _read_envelope(body, found, charge)
    if type(document) is not dict:
        raise _field("", "the body must be a JSON object")
    if not document.keys() <= _SCATTER_FIELDS:
        raise _unknown("", document, _SCATTER_FIELDS)
    given = {name: _given(name, document, body, view, found.places, charge) for name in ("indices", "updates")}
    reduction = document.get("reduction", "none")
    if type(reduction) is not str or reduction not in REDUCTIONS:
        raise _choice("reduction", REDUCTIONS)
    if len(document) + sum(members for _, _, members in given.values()) != found.members:
        _check_framing(body, charge)
    for name, (_, unknown, _) in given.items():
        if unknown is not None:
            raise _unsupported(name, unknown)
    sources = [source for source, _, _ in given.values()]
    indices, updates = (source.read(charge) for source in sources)
    if indices is None or updates is None:
        raise _WrongTensors(sources)
    for tensor in (indices, updates):
        if isinstance(tensor, PackedStrings) and (over_limit := _too_long(tensor, limits)) is not None:
            raise over_limit
    return ScatterCall(indices, updates, reduction)


def _read_envelope(body: Buffer, found: FoundArrays, charge: Charge | None) -> Any:
    """All but the arrays. Raises malformed_request and limit_exceeded."""
    if not found.closed:
        raise GatherError("malformed_request", "the body is not JSON: quotes or brackets do not close")
    document = read_envelope(body, found, "the values of the tensors", _check_framing, charge)
    if found.arrays > 2:
        _check_framing(body, charge)  # with a key given twice, the numbers would not be what they seem
    return document


def _given(
    name: str,
    document: Mapping[str, Any],
    body: Buffer,
    view: NDArray[np.uint8],
    places: Sequence[ArrayPlace],
    charge: Charge | None = None,
) -> _Given:
    """The fields of the tensor `name`, checked one by one. Raises invalid_field."""
    fields = document.get(name)
    if type(fields) is not dict:
        raise _field(f"/{name}", f"{name} must be an object" if name in document else f"{name} is missing")
    type_name, shape, array = fields.get("dtype"), fields.get("shape", ...), fields.get("values")
    usual = len(fields) == 3 and type_name is not None and shape is not ... and array is not None
    if not usual and not fields.keys() <= _TENSOR_FIELDS:
        raise _unknown(f"/{name}", fields, _TENSOR_FIELDS)
    if type(type_name) is not str:
        raise _field(f"/{name}/dtype", f"{name} needs a dtype, the name of a type")
    if shape is not ...:
        shape = _shape(name, shape)
    known = DTYPES.get(type_name)
    dtype = known or _ANY_TYPE
    unknown = None if known else type_name
    if array is not None:
        if "base64" in fields:
            raise _field(f"/{name}", f"{name} has both values and base64")
        first, end, depth = places[int(array)]
        if depth <= 0:  # no list
            depth = 0
            if body[first] in b"n{":
                raise _field(f"/{name}/values", "values must be a list, or one value for a tensor without dimensions")
        if shape is ...:
            shape = None
        return Values(view, name, dtype, shape, first, end, depth), unknown, len(fields)
    if "base64" not in fields:
        raise _field(f"/{name}", f"{name} has neither values nor base64")
    first, end, kind = places[int(fields["base64"])]
    if kind not in (STRING, ESCAPED):
        raise _field(f"/{name}/base64", "base64 must be a string")
    if shape is ...:
        raise _field(f"/{name}/shape", f"{name} needs a shape, since it has base64")
    text = memoryview(body)[first + 1 : end - 1]
    if kind == ESCAPED:
        text = _unescaped(name, view, first, end, charge)
    if charge is not None:
        charge(len(text) // 4 * 3)
    try:
        raw = pybase64.b64decode(text, validate=True)
    except ValueError:
        raise _no_base64(name) from None
    return Packed(name, dtype, shape, raw), unknown, len(fields)


def _unescaped(name: str, view: NDArray[np.uint8], first: int, end: int, charge: Charge | None) -> memoryview:
    """The UTF-8 of the string in [first, end) of `view`. Raises invalid_field for what is none."""
    string = Values(view, name, DTYPES["string"], (), first, end, 0).read(charge)
    if not isinstance(string, PackedStrings):
        raise _no_base64(name)
    return string.frame(0)[HEAD:]


def _no_base64(name: str) -> GatherError:
    return _field(f"/{name}/base64", "the text is not base64 (RFC 4648, with padding)")


def _shape(name: str, sizes: Any) -> tuple[int, ...]:
    if type(sizes) is not list:
        raise _field(f"/{name}/shape", "shape must be a list of integers")
    for size in sizes:
        if type(size) is not int or size < 0:
            break
    else:
        return tuple(sizes)
    shape = lossless_json.dimensions(sizes)
    if isinstance(shape, int):
        raise _field(f"/{name}/shape/{shape}", "a dimension must be an integer of 0 or more")
    return shape


def _resident(fields: Mapping[str, Any]) -> str:
    """The name of a resident tensor. Raises invalid_field."""
    if len(fields) > 1:
        raise _unknown("/data", fields, frozenset(("tensor",)))
    name = fields["tensor"]
    if type(name) is not str or not TENSOR_NAME.fullmatch(name):
        raise _field("/data/tensor", "a name is 1 to 128 of A-Z a-z 0-9 . _ - and begins with none of . _ -")
    return name


def _unsupported(name: str, dtype: str) -> GatherError:
    detail = f"{lossless_json.shown(dtype)!r} is no element type"
    return GatherError("unsupported_dtype", detail, pointer=f"/{name}/dtype")


def _explain(error: Exception, body: Buffer, charge: Charge | None) -> None:
    """Raises what is wrong first with a body that was refused, if that is something else than `error`.

    What is no JSON comes first, then all counts, then all values, and data before indices.
    """
    if isinstance(error, GatherError) and error.code in REFUSED_BY_CHARGE:
        return
    _check_framing(body, charge)
    if isinstance(error, _WrongTensors):
        for source in error.sources:
            source.explain_nesting()
        for source in error.sources:
            source.explain_value()


def _too_long(tensor: PackedStrings, limits: Limits) -> GatherError | None:
    """The error for a string that is too long, if there is one."""
    item = tensor.first_longer(limits.string_bytes)
    if item < 0:
        return None
    return GatherError(
        "limit_exceeded",
        f"a string has more than {limits.string_bytes} bytes of UTF-8",
        places=[Place(tensor.locate(item), coordinates(item, tensor.shape))],
        facts={"limit": "string_bytes", "maximum": limits.string_bytes},
    )


def _check_framing(body: Buffer, charge: Charge | None) -> None:
    """Raises malformed_request where the body is not JSON, or names a key twice, and what `charge` raises."""
    fault = grammar_and_duplicate_keys.fault(body, charge)
    if fault is not None:
        raise GatherError("malformed_request", fault)


def _field(pointer: str, detail: str) -> GatherError:
    return GatherError("invalid_field", detail, pointer=pointer)


def _unknown(pointer: str, fields: Mapping[str, Any], known: Collection[str]) -> GatherError:
    """The error for the first of `fields` that is not `known`."""
    name = next(lossless_json.printable(name) for name in fields if name not in known)
    pointer += "/" + name.replace("~", "~0").replace("/", "~1")
    return _field(pointer, f"{lossless_json.shown(name)!r} is not a field here; there are {', '.join(sorted(known))}")


def _choice(name: str, allowed: Collection[str]) -> GatherError:
    return _field(f"/{name}", f"{name} must be one of {', '.join(allowed)}")
