"""The Open Inference Protocol's REST bodies: the JSON and the binary parts of an infer request to a `Call`, and back.

A request is JSON that describes the inputs; each input has its items either there, in `data`, or behind the JSON, as
many bytes as its parameter `binary_data_size` says, in the order of the inputs. Items behind the JSON never become
Python objects, and are not copied where they are aligned.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NoReturn

import numpy as np
import orjson

from app.errors import GatherError, Place
from app.tensors.call import DEVICES, Answer, Call, Operator
from app.tensors.dtypes import BY_OIP, DTYPES, DType
from app.tensors.limits import Limits
from app.tensors.tensor import Tensor, coordinates
from app.wire import json_plain as native_json
from app.wire.packed import Buffer, PackedItemError, PackedSizeError, check_packed, longest_string, pack_items, unpack

OUTPUT: Final = "output"
VERSION: Final = "1"
_REMEMBERED: Final = 1 << 10
_DATATYPES: Final = ", ".join(BY_OIP)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model as its requests see it: an operator, or GatherND on the resident tensor of the model's name."""

    name: str
    operator: Operator
    dialects: Collection[str]
    resident: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return ("indices",) if self.resident else ("data", "indices")

    @property
    def parameter(self) -> str:
        """Name of the operator's own parameter."""
        return "batch_dims" if self.operator == "gathernd" else "axis"


@dataclass(slots=True)
class Request:
    """An infer request, read: `binary` says how its output is to be sent, `timeout` is in seconds."""

    call: Call
    identifier: str | None
    binary: bool
    timeout: float | None


@dataclass(frozen=True, slots=True)
class _Input:
    number: int
    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: Any

    @property
    def pointer(self) -> str:
        return f"/inputs/{self.number}"


@dataclass(frozen=True, slots=True)
class _Head:
    """What the JSON of a request says, without the items."""

    inputs: Mapping[str, _Input]
    blobs: tuple[_Input, ...]
    parameter: int
    dialect: str
    device: Any
    identifier: str | None
    binary: bool
    timeout: float | None


def read_request(body: Buffer, json_size: int | None, model: Model, limits: Limits) -> Request:
    """What an infer request asks for. The JSON is the first `json_size` bytes of `body`, all of it for None.

    A size of 0 means that the whole body is the items of a model's only input. Raises GatherError.
    """
    if json_size == 0:
        return _read_raw(body, model)
    if json_size is None:
        json_size = len(body)
        head = _read_head(body, model)
    elif json_size > len(body):
        _malformed(f"the JSON is {json_size} bytes long by its own account; the body has {len(body)} bytes")
    elif json_size <= _REMEMBERED:
        head = _remembered(bytes(body[:json_size]), model)
    else:
        head = _read_head(memoryview(body)[:json_size], model)
    raws = _split(head, body, json_size)
    tensors = _tensors([head.inputs[name] for name in model.inputs], raws, limits)
    call = _call(model, None if model.resident else tensors[0], tensors[-1], head)
    return Request(call, head.identifier, head.binary, head.timeout)


def _call(model: Model, data: Tensor | None, indices: Tensor, head: _Head | None) -> Call:
    return Call(
        model.operator,
        model.name if data is None else data,
        indices,
        head.parameter if head else 0,
        head.dialect if head else "onnx-13",
        head.device if head else "auto",
        parameter_pointer=f"/parameters/{model.parameter}",
        device_pointer="/parameters/device",
        data_pointer="",
    )


def _read_raw(body: Buffer, model: Model) -> Request:
    """A body without JSON: int64 index tuples of length 1. The answer is binary as well."""
    if not model.resident:
        _malformed(f"a body without JSON is for a model with one input; {model.name} has two")
    dtype = DTYPES["int64"]
    if len(body) % dtype.item_size:
        raise GatherError(
            "element_count_mismatch",
            f"{len(body)} bytes are not a whole number of int64 indices",
            pointer="/inputs/0",
        )
    indices = Tensor(dtype, (len(body) // dtype.item_size, 1), unpack(dtype, body), *_WHOLE)
    return Request(_call(model, None, indices, None), None, True, None)


_WHOLE: Final = ("/inputs/0", "whole", "/inputs/0", "/inputs/0")


def _read_head(text: Buffer, model: Model) -> _Head:
    document = _parse(text)
    if not isinstance(document, dict):
        raise _field("", "the body must be a JSON object")
    identifier = document.get("id")
    if identifier is not None and type(identifier) is not str:
        raise _field("/id", "id must be a string")
    parameters = _parameters(document, "")
    given = document.get("inputs")
    if not isinstance(given, list):
        raise _field("/inputs", "inputs must be a list of tensors")
    inputs: dict[str, _Input] = {}
    blobs = []
    for number, value in enumerate(given):
        tensor = _input(number, value, model)
        if tensor.name in inputs:
            raise _field(f"/inputs/{number}/name", f"the input {tensor.name!a} is given twice")
        inputs[tensor.name] = tensor
        if tensor.size is not None:
            blobs.append(tensor)
    for name in model.inputs:
        if name not in inputs:
            raise _field("/inputs", f"the input {name!a} is missing")
    binary = _flag(parameters, "binary_data_output", "", False)
    binary = _outputs(document.get("outputs"), binary)
    other = "axis" if model.parameter == "batch_dims" else "batch_dims"
    if other in parameters:
        raise _field(f"/parameters/{other}", f"{model.name} has no parameter {other}")
    return _Head(
        inputs,
        tuple(blobs),
        _integer(parameters, model.parameter, f"/parameters/{model.parameter}", 0),
        _choice(parameters, "dialect", model.dialects, "onnx-13"),
        _choice(parameters, "device", DEVICES, "auto"),
        identifier,
        binary,
        _timeout(parameters),
    )


def _parse(text: Buffer) -> Any:
    try:
        return json.loads(
            str(text, "utf-8"),
            parse_float=native_json.Number,
            parse_int=native_json.Number,
            parse_constant=_Bare,
        )
    except (ValueError, RecursionError) as error:
        _malformed(f"the JSON cannot be read: {error}")


class _Bare(str):
    """NaN or an infinity that stands without quotes."""


def _input(number: int, value: Any, model: Model) -> _Input:
    pointer = f"/inputs/{number}"
    if not isinstance(value, dict):
        raise _field(pointer, "an input must be an object")
    name, datatype, shape = value.get("name"), value.get("datatype"), value.get("shape")
    if type(name) is not str:
        raise _field(f"{pointer}/name", "name must be given, as a string")
    if name not in model.inputs:
        raise _field(f"{pointer}/name", f"{name!a} is not an input of {model.name}; {' and '.join(model.inputs)} are")
    if type(datatype) is not str:
        raise _field(f"{pointer}/datatype", "datatype must be given, as a string")
    if not isinstance(shape, list):
        raise _field(f"{pointer}/shape", "shape must be given, as a list of integers")
    sizes = []
    for axis, value_given in enumerate(shape):
        whole = native_json.integer(value_given)
        if whole is None or whole < 0:
            raise _field(f"{pointer}/shape/{axis}", "a dimension must be an integer of 0 or more")
        sizes.append(whole)
    parameters = _parameters(value, pointer)
    _refuse_shared_memory(parameters, pointer)
    data, size = value.get("data"), parameters.get("binary_data_size")
    if (data is None) == (size is None):
        raise _field(pointer, "exactly one of data and parameters/binary_data_size must be given")
    size = None if size is None else native_json.integer(size)
    if data is None and (size is None or size < 0):
        raise _field(f"{pointer}/parameters/binary_data_size", "binary_data_size must be an integer of 0 or more")
    if isinstance(data, dict):
        raise _field(f"{pointer}/data", "data must be a list")
    return _Input(number, name, datatype, tuple(sizes), size, data)


def _outputs(given: Any, binary: bool) -> bool:
    """Whether the output is to be binary, from the request's `outputs` and its default."""
    if given is None:
        return binary
    if not isinstance(given, list):
        raise _field("/outputs", "outputs must be a list")
    seen = False
    for number, value in enumerate(given):
        pointer = f"/outputs/{number}"
        if not isinstance(value, dict):
            raise _field(pointer, "an output must be an object")
        if value.get("name") != OUTPUT:
            raise _field(f"{pointer}/name", f"{value.get('name')!a} is not an output of this model; {OUTPUT!r} is")
        if seen:
            raise _field(f"{pointer}/name", f"the output {OUTPUT!r} is asked for twice")
        seen = True
        parameters = _parameters(value, pointer)
        _refuse_shared_memory(parameters, pointer)
        if parameters.get("classification"):
            raise GatherError(
                "not_implemented",
                "classification of an output is not offered here",
                pointer=f"{pointer}/parameters/classification",
            )
        binary = _flag(parameters, "binary_data", pointer, binary)
    return binary


def _parameters(value: dict[str, Any], pointer: str) -> dict[str, Any]:
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise _field(f"{pointer}/parameters", "parameters must be an object")
    return parameters


def _refuse_shared_memory(parameters: dict[str, Any], pointer: str) -> None:
    if "shared_memory_region" in parameters:
        raise GatherError(
            "not_implemented",
            "shared memory is not offered here; send the items in the request",
            pointer=f"{pointer}/parameters/shared_memory_region",
        )


def _flag(parameters: dict[str, Any], name: str, pointer: str, default: bool) -> bool:
    value = parameters.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _field(f"{pointer}/parameters/{name}", f"{name} must be true or false")
    return value


def _integer(parameters: dict[str, Any], name: str, pointer: str, default: int) -> int:
    if name not in parameters:
        return default
    value = native_json.integer(parameters[name])
    if value is None:
        raise _field(pointer, f"{name} must be an integer")
    return value


def _choice(parameters: dict[str, Any], name: str, allowed: Collection[str], default: str) -> str:
    value = parameters.get(name, default)
    if type(value) is not str or value not in allowed:
        raise _field(f"/parameters/{name}", f"{name} must be one of {', '.join(allowed)}")
    return value


def _timeout(parameters: dict[str, Any]) -> float | None:
    """Seconds, of the parameter's microseconds; 0 is the protocol's word for none."""
    value = _integer(parameters, "timeout", "/parameters/timeout", 0)
    if value < 0:
        raise _field("/parameters/timeout", "timeout must be 0 or more microseconds")
    return value / 1e6 if value else None


def _split(head: _Head, body: Buffer, start: int) -> dict[str, memoryview]:
    """The bytes of each binary input. Raises malformed_request unless they are exactly what follows the JSON."""
    raws = {}
    view = memoryview(body)
    place = start
    for tensor in head.blobs:
        assert tensor.size is not None
        raws[tensor.name] = view[place : place + tensor.size]
        place += tensor.size
    if place != len(view):
        held, wanted = len(view) - start, place - start
        what = f"end early: {held} of {wanted} bytes are there" if wanted > held else f"are {wanted} of {held} bytes"
        _malformed(f"the binary items behind the JSON {what}")
    return raws


def _tensors(inputs: list[_Input], raws: dict[str, memoryview], limits: Limits) -> list[Tensor]:
    """The tensors of `inputs`, checked: first every datatype, then every count, then the values."""
    dtypes = [_dtype(tensor) for tensor in inputs]
    for tensor, dtype in zip(inputs, dtypes, strict=True):
        if tensor.size is not None:
            try:
                check_packed(dtype, tensor.shape, raws[tensor.name])
            except PackedSizeError as error:
                raise GatherError("element_count_mismatch", str(error), pointer=tensor.pointer) from None
    return [_tensor(tensor, dtype, raws.get(tensor.name), limits) for tensor, dtype in zip(inputs, dtypes, strict=True)]


def _dtype(tensor: _Input) -> DType:
    dtype = BY_OIP.get(tensor.datatype)
    if dtype is None:
        raise GatherError(
            "unsupported_dtype",
            f"{tensor.datatype!a} is not a datatype of the inference protocol, which has {_DATATYPES}; "
            "POST /gathernd takes complex types",
            pointer=f"{tensor.pointer}/datatype",
        )
    return dtype


def _tensor(tensor: _Input, dtype: DType, raw: memoryview | None, limits: Limits) -> Tensor:
    pointer = tensor.pointer
    if raw is None:
        made = _read_data(tensor, dtype)
    else:
        try:
            array = unpack(dtype, raw)
        except PackedItemError as error:
            place = Place(pointer, coordinates(error.item, tensor.shape), error.value)
            raise GatherError("value_not_representable", str(error), places=[place]) from None
        made = Tensor(dtype, tensor.shape, array, pointer, "whole", f"{pointer}/shape", f"{pointer}/datatype")
    if dtype.kind == "string":
        item = longest_string(made.array, limits.string_bytes)
        if item >= 0:
            raise GatherError(
                "limit_exceeded",
                f"a string of {tensor.name} is longer than {limits.string_bytes} bytes",
                places=[Place(made.locate(item), coordinates(item, made.shape))],
                facts={"limit": "string_bytes", "maximum": limits.string_bytes},
            )
    return made


def _read_data(tensor: _Input, dtype: DType) -> Tensor:
    pointer = tensor.pointer
    data = _unbared(tensor.data) if dtype.kind == "float" else tensor.data
    fields = {"dtype": dtype.name, "shape": tensor.shape, "values": data}
    try:
        made = native_json._tensor("x", fields, *native_json._count("x", fields))
    except GatherError as error:
        places = [
            replace(place, pointer=f"{pointer}/data{place.pointer[len('/x/values') :]}") for place in error.places
        ]
        raise GatherError(error.code, error.detail.replace("x has", f"{tensor.name} has"), places=places) from None
    made.pointer, made.shape_pointer, made.dtype_pointer = f"{pointer}/data", f"{pointer}/shape", f"{pointer}/datatype"
    return made


def _unbared(data: Any) -> Any:
    if isinstance(data, list):
        return [_unbared(item) for item in data]
    return str(data) if type(data) is _Bare else data


_remembered = lru_cache(256)(_read_head)


def _field(pointer: str, detail: str) -> GatherError:
    return GatherError("invalid_field", detail, pointer=pointer)


def _malformed(detail: str) -> NoReturn:
    raise GatherError("malformed_request", detail)


def check_writable(dtype: DType) -> None:
    """Raises unsupported_dtype for complex types, which the protocol does not have."""
    if dtype.oip is None:
        raise GatherError(
            "unsupported_dtype", f"the inference protocol has no datatype for {dtype.name}; use POST /gathernd"
        )


def write_answer(answer: Answer, model: Model, request: Request) -> tuple[list[Buffer], int | None]:
    """The body of the answer in pieces, and the size of its JSON where binary items follow.

    Raises unsupported_dtype.
    """
    output = answer.output
    check_writable(output.dtype)
    described: dict[str, Any] = {"name": OUTPUT, "datatype": output.dtype.oip, "shape": output.shape}
    body: dict[str, Any] = {} if request.identifier is None else {"id": request.identifier}
    body |= {"model_name": model.name, "model_version": VERSION, "outputs": [described]}
    body["parameters"] = {"dialect": answer.dialect, "device": answer.device}
    if not request.binary:
        described["data"] = native_json._listed(output.dtype, output.array)
        return [orjson.dumps(body)], None
    items: Buffer = (
        pack_items(output.dtype, output.array) if output.dtype.kind == "string" else output.array.view(np.uint8).data
    )
    described["parameters"] = {"binary_data_size": len(items)}
    head = orjson.dumps(body)
    return [head, items], len(head)
