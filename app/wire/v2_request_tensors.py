"""The Open Inference Protocol's infer requests over REST: the JSON and the binary parts of a body to a `Call`.

A request is JSON that describes the inputs; each input has its items either there, in `data`, or behind the JSON, as
many bytes as its parameter `binary_data_size` says, in the order of the inputs. Items never become Python objects,
and those behind the JSON are not copied where they are aligned. The JSON is read as that of a gather: the
items are cut out, a library reads the small rest, `read_values` the items, and whatever is refused is held against the
whole grammar first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError, Place
from app.requests.read_call import too_long_string
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import BY_OIP, DTYPES
from app.tensors.gather_call import Call
from app.tensors.near_dtype import hint_for_dtype, holds_positions, near_dtype
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates
from app.wire.json import lossless_json
from app.wire.json.read_values import Values
from app.wire.little_endian_items import (
    REFUSED_BY_CHARGE,
    Charge,
    PackedItemError,
    PackedSizeError,
    check_packed,
    packed_size_hint,
    unpack,
    view_of,
)
from app.wire.v2_request_json import Head, Input, Model, check_framing, malformed, read_head

LARGE: Final = 1 << 16
_BYTE: Final = np.dtype(np.uint8)
_REMEMBERED: Final = 1 << 10
_DATATYPES: Final = ", ".join(BY_OIP)
_DTYPE_IN_HINT: Final = re.compile(r"dtype '(\w+)'")


class InputItems(NamedTuple):
    """The packed items of inputs that are not in the JSON, by the inputs' names, and where within the input those are
    that came one by one.
    """

    raws: Mapping[str, Buffer]
    flat: Mapping[str, str] = {}


class Request(NamedTuple):
    """An infer request, read: `binary` says how its output is to be sent, `timeout` is in seconds."""

    call: Call
    identifier: str | None
    binary: bool
    timeout: float | None


# Callers repeat themselves: the same shapes give the same JSON where the items are behind it.
_remembered = lru_cache(256)(read_head)


def is_heavy(body: Buffer, json_size: int | None, model: Model) -> bool:
    """Whether `read_request` has to look at or copy more than `LARGE` bytes of `body`: then not on the event loop."""
    if len(body) <= LARGE or json_size == 0:
        return False
    if json_size is None or json_size > _REMEMBERED:
        return True
    whole = memoryview(body)
    try:
        head = _remembered(bytes(whole[:json_size]), model)
        raws = split_blobs(head.blobs, whole[json_size:])
    except GatherError:
        return False  # soon refused
    for one in head.blobs:
        if len(raws[one.name]) <= LARGE or one.dtype is None:
            continue
        if one.dtype.kind in ("bool", "string") or len(raws[one.name]) % one.dtype.item_size:
            return True
        if not np.frombuffer(raws[one.name], one.dtype.numpy).flags.aligned:
            return True
    return False


def read_request(
    body: Buffer, json_size: int | None, model: Model, limits: Limits, charge: Charge | None = None
) -> Request:
    """What an infer request asks for. The JSON is the first `json_size` bytes of `body`, all of it for None.

    A size of 0 means that the whole body is the items of a model's only input. What is wrong is refused in this order:
    malformed_request; invalid_field and not_implemented; unsupported_dtype; element_count_mismatch;
    value_not_representable; limit_exceeded. `charge` is told what the items that are made will take, in bytes, before
    they do; what it raises is raised.
    """
    if json_size == 0:
        return _read_raw(body, model)
    if json_size is None:
        text = body
        blobs: Buffer = b""
    elif json_size > len(body):
        raise malformed(f"the JSON is {json_size} bytes long by its own account; the body has {len(body)} bytes")
    else:
        whole = memoryview(body)
        text, blobs = whole[:json_size], whole[json_size:]
    try:
        return _read_request(text, blobs, model, limits, charge)
    except GatherError as error:
        if error.code not in REFUSED_BY_CHARGE:
            check_framing(text, charge)
        raise
    except WrongItemsError as error:
        check_framing(text, charge)
        raise error.explained(text) from None


def _read_request(text: Buffer, blobs: Buffer, model: Model, limits: Limits, charge: Charge | None) -> Request:
    remembered = blobs and len(text) <= _REMEMBERED
    head = _remembered(bytes(text), model) if remembered else read_head(text, model, charge)
    tensors, over_limit = read_inputs(head.inputs, text, InputItems(split_blobs(head.blobs, blobs)), limits, charge)
    return Request(call_of(head, model, tensors, over_limit), head.identifier, head.binary, head.timeout)


def call_of(head: Head, model: Model, tensors: list[Tensor], over_limit: GatherError | None) -> Call:
    """The call that a request to `model` asks for, with the tensors of `head.inputs`."""
    updates = None if model.signature.kind == "gather" else tensors.pop()
    call = Call(
        model.signature.operator,
        model.reference if model.resident else tensors[0],
        tensors[-1],
        head.parameter,
        head.dialect,
        head.device,
        model.signature.parameters_pointer,
        "/parameters/device",
        "",
        over_limit,
        out_of_bounds=head.out_of_bounds,
        fill_value=head.fill_value,
        batch_dims=head.batch_dims,
    )
    if updates is not None:
        call.updates, call.reduction = updates, head.reduction
        call.reduction_pointer = "/parameters/reduction"
    return call


def _read_raw(body: Buffer, model: Model) -> Request:
    """A body without JSON: int64 index tuples of length 1. The answer is binary as well."""
    if not model.resident:
        raise malformed(f"a body without JSON is for a model with one input; {model.name} has {len(model.inputs)}")
    dtype, at = DTYPES["int64"], "/inputs/0"
    count, rest = divmod(len(body), dtype.item_size)
    if rest:
        raise GatherError("element_count_mismatch", f"{len(body)} bytes are no whole number of int64", pointer=at)
    indices = unpack(dtype, (count, 1), body, None, at, at, at)
    call = Call(model.signature.operator, model.reference, indices, 0, model.signature.default_dialect, data_pointer="")
    return Request(call, None, True, None)


def split_blobs(blobs: Sequence[Input], behind: Buffer) -> dict[str, Buffer]:
    """The bytes of each binary input. Raises malformed_request unless they are exactly what follows the JSON."""
    raws = {}
    place = 0
    for one in blobs:
        assert one.size is not None
        raws[one.name] = behind[place : place + one.size]
        place += one.size
    if place != len(behind):
        wanted = str(place) if place < 2**63 else "more than 2^63"
        raise malformed(f"{len(behind)} bytes follow the JSON of the request, which asks for {wanted}")
    return raws


def read_inputs(
    inputs: Sequence[Input],
    text: Buffer,
    items: InputItems,
    limits: Limits,
    charge: Charge | None,
) -> tuple[list[Tensor], GatherError | None]:
    """The tensors of the inputs, checked: first every datatype, then every count, then the values; and a limit that a
    string exceeds.
    """
    check_datatypes(inputs)
    raws, flat = items
    view: NDArray[np.uint8] | None = None
    tensors = []
    over_limit: GatherError | None = None
    for at, (number, name, _, dtype, shape, size, first, end, _) in enumerate(inputs):
        assert dtype is not None
        pointer, data_pointer, shape_pointer, dtype_pointer = pointers_of(number)
        if size is None:
            if view is None:
                view = view_of(text)
            values = values_of(inputs[at], view)
            read = values.read(charge)
            if read is None:
                raise WrongItemsError(inputs, at, raws, values, None)
            tensor = read
            tensor.pointer, tensor.shape_pointer, tensor.dtype_pointer = data_pointer, shape_pointer, dtype_pointer
        else:
            try:
                tensor = unpack(dtype, shape, raws[name], charge, pointer, shape_pointer, dtype_pointer)
            except PackedSizeError:
                raise WrongItemsError(inputs, at, raws, None, None) from None
            except PackedItemError as error:
                raise WrongItemsError(inputs, at, raws, None, error) from None
        if name in flat:
            tensor.pointer += flat[name]
            tensor.form = "flat"
        if isinstance(tensor, PackedStrings) and over_limit is None:
            # Bytes of its longest string at most.
            most = end - first if size is None else len(raws[name])
            if most > limits.string_bytes:
                over_limit = too_long_string(tensor, limits, f"a string of {name}")
        tensors.append(tensor)
    return tensors, over_limit


@lru_cache(1 << 12)  # a lookup has three inputs for each feature
def pointers_of(number: int) -> tuple[str, str, str, str]:
    """Of an input: where it is, its items in the JSON, its shape and its datatype."""
    at = f"/inputs/{number}"
    return at, f"{at}/data", f"{at}/shape", f"{at}/datatype"


def values_of(one: Input, view: NDArray[np.uint8]) -> Values:
    """The values of an input that has them in the JSON, of which `view` has the bytes."""
    assert one.dtype is not None
    return Values(view, one.name, one.dtype, one.shape, one.first, one.end, one.depth, True)


def check_datatypes(inputs: Sequence[Input]) -> None:
    """Raises unsupported_dtype for the first input whose datatype is none of the protocol's."""
    for one in inputs:
        if one.dtype is None:
            raise _no_datatype(one)


def _no_datatype(one: Input) -> GatherError:
    return GatherError(
        "unsupported_dtype",
        f"{lossless_json.shown(one.datatype)!a} is not a datatype of the inference protocol, which has {_DATATYPES}; "
        "POST /gathernd takes complex types",
        pointer=f"{one.pointer}/datatype",
        hint=_hint_for_datatype(str(lossless_json.shown(one.datatype)), one.name),
    )


def _datatype(dtype: re.Match[str]) -> str:
    return f"datatype '{DTYPES[dtype[1]].oip}'"


def _hint_for_datatype(given: str, of: str) -> str:
    near = near_dtype(given)
    if near is not None and DTYPES[near].oip is None and not holds_positions(of):
        return f"Send {near} to POST /gathernd, since the inference protocol has no such type."
    return hint_for_dtype(given, {name: row.oip for name, row in DTYPES.items() if row.oip is not None}, of)


class WrongItemsError(Exception):
    """The items of input `at` do not fit its shape or datatype; those of the inputs before it do.

    `values` are the items as the JSON has them, `error` says which of the binary ones is wrong, if one is.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        at: int,
        raws: Mapping[str, Buffer],
        values: Values | None,
        error: PackedItemError | None,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.at = at
        self.raws = raws
        self.values = values
        self.error = error

    def explained(self, text: Buffer) -> GatherError:
        """What is wrong first: all counts come before all values."""
        try:
            for at, one in enumerate(self.inputs[self.at :], self.at):
                values = self.values if at == self.at else None
                _explain_count(one, values, text, self.raws)
            self._explain_value(self.inputs[self.at])
        except GatherError as error:
            return error
        raise AssertionError("the items were refused, and nothing is wrong with them")

    def _explain_value(self, one: Input) -> None:
        if self.values is not None:
            with _placed(one):
                self.values.explain_value()
        if self.error is not None:
            place = Place(one.pointer, coordinates(self.error.item, one.shape), self.error.value)
            detail = f"{one.name}: {self.error}"
            raise GatherError("value_not_representable", detail, places=[place], hint=self.error.hint)


def _explain_count(one: Input, values: Values | None, text: Buffer, raws: Mapping[str, Buffer]) -> None:
    assert one.dtype is not None
    if one.size is None:
        with _placed(one):
            (values or values_of(one, view_of(text))).explain_nesting()
        return
    try:
        check_packed(one.dtype, one.shape, raws[one.name])
    except PackedSizeError as error:
        hint = packed_size_hint(one.dtype, one.shape, len(raws[one.name]))
        raise GatherError("element_count_mismatch", f"{one.name}: {error}", pointer=one.pointer, hint=hint) from None


@contextmanager
def _placed(one: Input) -> Iterator[None]:
    """Errors that point to the native format's `/NAME/values` point to where this input has its items."""
    try:
        yield
    except GatherError as error:
        prefix, pointer = f"/{one.name}/values", f"{one.pointer}/data"
        places = [replace(place, pointer=pointer + place.pointer[len(prefix) :]) for place in error.places]
        hint = error.hint and _DTYPE_IN_HINT.sub(_datatype, error.hint.replace(prefix, pointer))
        raise GatherError(error.code, error.detail, places=places, total=error.total, hint=hint) from None
