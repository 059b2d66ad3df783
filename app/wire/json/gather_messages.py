"""The native JSON codec: the bodies of gathers to a `Call`, an `Answer` to its body.

A body is read in three steps: `find_arrays` finds the values of the tensors and cuts them out, a JSON library reads the
rest (`body_without_arrays`), and `read_values` reads the values straight into arrays. Whatever is refused is held
against the whole grammar (`grammar_and_duplicate_keys`) first, for what is no JSON is refused as that, wherever else it
is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from app import llvm_intrinsics
from app.errors import GatherError, invalid_field
from app.tensors import string_frames, utf8
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import DEVICES, ENCODINGS, Call, Encoding
from app.tensors.operator_signature import DEFAULT_DIALECT, PARAMETERS, Signature
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.wire.json import (
    characters,
    decimal_to_double,
    find_arrays,
    format_float,
    grammar_and_duplicate_keys,
    lossless_json,
    parse_decimal,
    parse_element,
    parse_number_arrays,
    parse_string,
    write_strings,
)
from app.wire.json.find_arrays import FoundArrays, scan_tensors
from app.wire.json.read_base64 import Packed
from app.wire.json.read_tensor import (
    WrongTensors,
    check_framing,
    given_tensor,
    not_one_of,
    raise_first_fault,
    read_document,
    resident_name,
    too_long_string,
    unknown_field,
    unsupported_dtype,
)
from app.wire.json.read_values import Values
from app.wire.json.validated_fields_cache import RequestTemplate, array_template, fill, short_envelope, templates
from app.wire.json.write_values import is_long, values_text, write_answer
from app.wire.little_endian_items import Charge

__all__ = [
    "configure",
    "is_long",
    "read_call",
    "warm",
    "write_answer",
]

_BYTE: Final = np.dtype(np.uint8)
_COMMON: Final = frozenset(("data", "indices", "dialect", "device", "output_encoding"))
_FIELDS: Final[Mapping[str, frozenset[str]]] = {parameter: _COMMON | {parameter} for parameter in PARAMETERS}
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


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is read."""
    llvm_intrinsics.keep_compiled(
        cache_dir,
        "json",
        (llvm_intrinsics, characters, parse_decimal, decimal_to_double, parse_element, parse_string, utf8),
        _COMPILED,
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
    except (GatherError, WrongTensors) as error:
        raise_first_fault(error, body, charge)
        raise


def _read_call(body: Buffer, signature: Signature, limits: Limits, charge: Charge | None) -> tuple[Call, Encoding]:
    view = np.frombuffer(body, _BYTE)
    if type(body) is not bytes:
        view.flags.writeable = False  # as `view_of`
    closed, members, nontrivial_numbers, arrays, places = scan_tensors(view)
    text = None
    if closed and not nontrivial_numbers:
        text = short_envelope(body, arrays, places)
        if text is not None:
            template = templates.get((signature, text))
            if template is not None and template.members == members:
                return fill(template, signature, body, view, places, limits, charge)
    document = read_document(body, FoundArrays(closed, members, nontrivial_numbers, arrays, places), charge)
    if type(document) is not dict:
        raise invalid_field("", "the body must be a JSON object")
    parameter_name = signature.parameter
    if not document.keys() <= _FIELDS[parameter_name]:
        raise unknown_field("", document, _FIELDS[parameter_name])
    fields = document.get("data")
    resident = resident_name(fields) if type(fields) is dict and "tensor" in fields else None
    data, data_unknown, data_members = (
        given_tensor("data", document, body, view, places, charge) if resident is None else (None, None, 1)
    )
    indices, index_unknown, index_members = given_tensor("indices", document, body, view, places, charge)
    parameter = document.get(parameter_name, 0)
    if type(parameter) is not int:
        parameter = lossless_json.integer(parameter)
        if parameter is None:
            raise invalid_field(signature.pointer, f"{parameter_name} must be an integer")
    dialect = document.get("dialect", signature.default_dialect)
    if type(dialect) is not str or dialect not in signature.dialects:
        raise not_one_of("dialect", signature.dialects)
    device = document.get("device", "auto")
    if type(device) is not str or device not in DEVICES:
        raise not_one_of("device", DEVICES)
    encoding = document.get("output_encoding", "values")
    if type(encoding) is not str or encoding not in ENCODINGS:
        raise not_one_of("output_encoding", ENCODINGS)
    if len(document) + data_members + index_members != members:
        check_framing(body, charge)

    if data_unknown is not None:
        raise unsupported_dtype("data", data_unknown)
    if index_unknown is not None:
        raise unsupported_dtype("indices", index_unknown)
    data_tensor = resident if data is None else data.read(charge)
    index_tensor = indices.read(charge)
    if data_tensor is None or index_tensor is None:
        raise WrongTensors([source for source in (data, indices) if source is not None])
    call = Call(signature.operator, data_tensor, index_tensor, parameter, dialect, device, signature.pointer)
    if len(body) > limits.string_bytes and type(data_tensor) is PackedStrings:
        call.over_limit = too_long_string(data_tensor, limits)
    if text is not None and (data is None or type(data) is Values) and type(indices) is Values:
        places_of = {place[0]: number for number, place in enumerate(places)}
        kept = resident if data is None else array_template("data", data, places_of)
        assert kept is not None
        templates[signature, text] = RequestTemplate(
            members,
            kept,
            array_template("indices", indices, places_of),
            parameter,
            dialect,
            device,
            encoding,
        )
    return call, encoding
