"""Requests for scatters into a copy, and for changes of a resident tensor.

ScatterND and ScatterElements return an updated copy of the data. A resident tensor is changed by a scatter, or by an
upsert or a removal of rows by key.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from . import _answers
from ._answers import SAFETENSORS, Decode, RowsChanged, ScatterInfo
from ._array_bytes import EncodedTensor, decode, encode
from ._arrays_of_others import as_indices, as_type, decode_for_torch, encode_value, has_no_type
from ._endpoints import JSON, Reduction, check_name, conditions, json_tensor, to_operator
from ._key_arrays import request_keys
from ._messages import Answer, Request
from ._safetensors import write_safetensors
from ._selection import resident_name
from .errors import ConnectError, GatherNDError, ShardUnavailable, TransportError

T = TypeVar("T")
ScatterOperator = Literal["scatternd", "scatter_elements"]


def scatter_into_copy(
    operator: ScatterOperator,
    data: Any,
    indices: Any,
    updates: Any,
    axis: int | None,
    reduction: Reduction,
    dialect: str,
    info: bool,
    as_torch: bool,
) -> Request[Any]:
    """Build the request for a scatter into a copy, in safetensors if it has the element type, else in JSON with base64.

    `axis` is None for ScatterND. A list of updates is converted to the type of the data if the request contains the
    data. The result is an array or, with `as_torch`, a PyTorch tensor. With `info`, it is a Result that holds the array
    or tensor.
    """
    make: Decode = decode_for_torch if as_torch else decode

    def read(answer: Answer) -> Any:
        found = _answers.read_gathered(answer, make)
        return _answers.with_info(answer, *found) if info else found.array

    tensors = {"indices": encode(as_indices(indices, widen=True))}
    name = resident_name(data)
    if name is None:
        tensors["data"] = encode_value(data)
        if has_no_type(updates):
            updates = as_type(updates, tensors["data"].element_type.name)
    else:
        check_name(name)
    tensors["updates"] = encode_value(updates)
    fields: dict[str, Any] = {"reduction": reduction, "dialect": dialect}
    if axis is not None:
        fields["axis"] = axis
    return to_operator(f"/{operator}", read, tensors, {} if name is None else {"data": name}, fields)


def scatter_into_table(
    name: str,
    indices: Any,
    updates: Any,
    reduction: Reduction,
    if_match: str | None,
    idempotency_key: str | None,
) -> Request[ScatterInfo]:
    """Build the request for a scatter into a resident tensor."""
    tensors = {"indices": encode(as_indices(indices, widen=True)), "updates": encode_value(updates)}
    fields = {"reduction": reduction}
    return _change("scatter", name, lambda binary: tensors, fields, _answers.read_scatter, if_match, idempotency_key)


def upsert(
    name: str, updates: Any, reduction: Reduction, if_match: str | None, idempotency_key: str | None, keys: Any
) -> Request[RowsChanged]:
    """Build the request that changes the rows of existing keys and adds rows for new keys."""
    further = {"updates": encode_value(updates)}

    def tensors(binary: bool) -> dict[str, EncodedTensor]:
        return request_keys(keys, binary=binary) | further

    fields = {"reduction": reduction}
    return _change("upsert", name, tensors, fields, _answers.read_rows_changed, if_match, idempotency_key)


def remove(name: str, if_match: str | None, idempotency_key: str | None, keys: Any) -> Request[RowsChanged]:
    """Build the request that removes rows by key."""

    def tensors(binary: bool) -> dict[str, EncodedTensor]:
        return request_keys(keys, binary=binary)

    return _change("remove", name, tensors, {}, _answers.read_rows_changed, if_match, idempotency_key)


def _change(
    what: Literal["scatter", "upsert", "remove"],
    name: str,
    tensors: Callable[[bool], dict[str, EncodedTensor]],
    fields: Mapping[str, str],
    make: Callable[[Answer, str], T],
    if_match: str | None,
    idempotency_key: str | None,
) -> Request[T]:
    """Build the request that changes a resident tensor. It always has an Idempotency-Key, which makes it retryable.

    `tensors(binary)` returns the tensors of a binary or a JSON body; the body is binary if safetensors has all element
    types. `make` parses the answer, given the Idempotency-Key.
    """
    check_name(name)
    key = idempotency_key or str(uuid.uuid4())

    def read(answer: Answer) -> T:
        return make(answer, key)

    def note(error: GatherNDError) -> str | None:
        is_unknown = isinstance(error, TransportError) and not isinstance(error, ConnectError)
        if not is_unknown and not isinstance(error, ShardUnavailable):
            return None
        if what == "scatter":
            return f"the scatter may have been made, or a part of it: repeat it under idempotency_key {key!r}"
        return f"the {what} may have been made: repeat it under idempotency_key {key!r}"

    path = f"/tensors/{name}/{what}"
    headers = {"accept": JSON, "idempotency-key": key, **conditions(if_match, None)}
    binary = tensors(True)
    if all(tensor.element_type.safetensors for tensor in binary.values()):
        headers["content-type"] = SAFETENSORS
        return Request("POST", path, read, fields, headers, write_safetensors(binary), note=note)
    headers["content-type"] = JSON
    document = {role: json_tensor(tensor) for role, tensor in tensors(False).items()} | {**fields}
    return Request("POST", path, read, {}, headers, [json.dumps(document).encode()], note=note)
