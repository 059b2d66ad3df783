"""Requests that select the rows of a table by key instead of by position: gathers, uploads, downloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from numpy.typing import NDArray

from . import _answers, _endpoints
from ._answers import SAFETENSORS, Decode, TensorInfo
from ._array_bytes import decode
from ._arrays_of_others import decode_for_torch
from ._endpoints import JSON, RAW, OutOfBounds, check_name, conditions, dtype_name, json_value, to_operator
from ._key_arrays import key_tensors, request_keys
from ._messages import Answer, Request
from ._safetensors import write_in_order
from ._selection import resident_name

Missing = Literal["error", "fill", "row"]
FOUND: Final = "found"


def key_fields(missing: Missing | None, missing_row: Any, found: bool) -> dict[str, Any]:
    """Return the request fields that accompany keys, except those with default values."""
    fields: dict[str, Any] = {} if missing is None else {"missing": missing}
    if missing_row is not None:
        fields["missing_row"] = row_name(missing_row)
    if found:
        fields[FOUND] = True
    return fields


def row_name(row: Any) -> Any:
    """Return the JSON form of a row reference: its position, or a mapping with its `key`."""
    if isinstance(row, Mapping):
        return {name: json_value(value) for name, value in row.items()}
    return json_value(row)


def gather(
    data: Any,
    indices: Any,
    axis: int,
    batch_dims: int,
    dialect: str,
    device: str,
    out_of_bounds: OutOfBounds | None,
    missing: Missing | None,
    missing_row: Any,
    found: bool,
    fill_value: Any,
    output_dtype: Any,
    info: bool,
    as_torch: bool,
    keys: Any,
) -> Request[Any]:
    """Build the request for a Gather, either of rows by key or of slices by position.

    The result is an array or, with `as_torch`, a PyTorch tensor. With `info` or `found`, it is a Result that holds the
    array or tensor. Raises TypeError unless exactly one of indices and keys is given, and if options for keys are given
    without keys.
    """
    if (indices is None) == (keys is None):
        raise TypeError("a gather takes indices, positions of rows, or keys=, and one of them")
    fields = key_fields(missing, missing_row, found)
    if keys is None:
        if fields:
            raise TypeError(f"{min(fields)}= belongs to a gather with keys=")
        return _endpoints.gather(
            "gather", data, indices, axis, dialect, device, out_of_bounds, fill_value, output_dtype, info, as_torch,
            batch_dims,
        )  # fmt: skip
    make: Decode = decode_for_torch if as_torch else decode

    def read(answer: Answer) -> Any:
        gathered = _answers.read_gathered(answer, make)
        return _answers.with_info(answer, *gathered) if info or found else gathered.array

    name = resident_name(data)
    if name is None:
        raise TypeError("keys name rows of a resident tensor: data is its name")
    check_name(name)
    fields |= {"dialect": dialect, "device": device}
    given = {"axis": axis or None, "batch_dims": batch_dims or None, "out_of_bounds": out_of_bounds}
    fields |= {field: value for field, value in given.items() if value is not None}
    if fill_value is not None:
        fields["fill_value"] = json_value(fill_value)
    if output_dtype is not None:
        fields["output_dtype"] = dtype_name(output_dtype)
    return to_operator("/gather", read, request_keys(keys), {"data": name}, fields)


def put_keys(name: str, keys: Any, if_match: str, keep: int | None, note: str | None) -> Request[TensorInfo]:
    """Build the request that gives keys to a table without keys.

    Not retryable: a second attempt would find a table that has keys already.
    """
    check_name(name)
    query = {"keep": None if keep is None else str(keep), "note": note}
    given = {field: value for field, value in query.items() if value is not None}
    headers = {"content-type": SAFETENSORS, "accept": JSON, **conditions(if_match, None)}
    body = write_in_order(key_tensors(keys))
    return Request("PUT", _path(name), _answers.read_info, given, headers, body, retryable=False)


def get_keys(name: str, if_match: str | None) -> Request[NDArray[Any]]:
    """Build the request for a table's keys, in row order."""
    check_name(name)

    def read(answer: Answer) -> NDArray[Any]:
        return decode(*_answers.type_and_shape(answer.status, answer.headers), answer.body)

    return Request("GET", _path(name), read, headers={"accept": RAW, **conditions(if_match, None)})


def _path(name: str) -> str:
    return f"/tensors/{name}/keys"
