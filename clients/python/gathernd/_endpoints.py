"""The service's endpoints. Each function returns the `Request` to send, which includes the parser of its answer.

Both clients, sync and async, send these requests. Nothing here uses the network; an upload may read a file.
"""

from __future__ import annotations

import json
import math
import operator
import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from . import _answers
from ._answers import SAFETENSORS, Alias, AliasPage, Decode, Page, TensorInfo
from ._array_bytes import ELEMENT_TYPES, EncodedTensor, decode, encode
from ._arrays_of_others import as_indices, decode_for_torch, encode_value
from ._messages import Answer, Headers, Progress, Request
from ._progress_bar import ProgressBar
from ._safetensors import write_in_order, write_safetensors
from ._selection import NamedTensor
from ._upload_sources import DATA, upload_tensors
from .errors import GatherNDError, IndexDepthOutOfRange, IndexOutOfBounds

Operator = Literal["gathernd", "gather", "gather_elements"]
Reduction = Literal["none", "add", "mul", "min", "max"]
OutOfBounds = Literal["error", "clip", "wrap", "fill"]

JSON: Final = "application/json"
PARAMETERS: Final[Mapping[Operator, str]] = {"gathernd": "batch_dims", "gather": "axis", "gather_elements": "axis"}
"""The name of each operator's parameter."""
RAW: Final = "application/octet-stream"
# safetensors lacks complex128 and string, so they come as JSON. Only the service knows a resident tensor's type.
SAFETENSORS_OR_JSON: Final = f"{SAFETENSORS}, {JSON};q=0.5"
_AS_SAFETENSORS: Final = {"content-type": SAFETENSORS, "accept": SAFETENSORS_OR_JSON}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(@[1-9][0-9]{0,18})?")


def gather(
    operator: Operator,
    data: Any,
    indices: Any,
    parameter: int,
    dialect: str,
    device: str,
    out_of_bounds: OutOfBounds | None,
    fill_value: Any,
    output_dtype: Any,
    info: bool,
    as_torch: bool,
    batch_dims: int = 0,
) -> Request[Any]:
    """Build the request for a gather, in safetensors if it has both element types, else in JSON with base64.

    `parameter` is the operator's own parameter, and `batch_dims` is the additional parameter of `gather`. If
    `out_of_bounds` is None, the dialect's default applies. The result is an array or, with `as_torch`, a PyTorch
    tensor. With `info`, it is a Result that holds the array or tensor.
    """
    index_array = as_indices(indices, widen=dialect.startswith("onnx"))
    make: Decode = decode_for_torch if as_torch else decode

    def read(answer: Answer) -> Any:
        found = _answers.read_gathered(answer, make)
        return _answers.with_info(answer, *found) if info else found.array

    tensors = {"indices": encode(index_array)}
    if isinstance(data, NamedTensor):
        data = data.name
    if isinstance(data, str):
        check_name(data)
    else:
        tensors["data"] = encode_value(data)
    note = _one_tuple(index_array) if operator == "gathernd" and index_array.ndim == 1 else None
    path = f"/{operator}"
    value = None if fill_value is None else json_value(fill_value)
    asked_dtype = dtype_name(output_dtype)
    if all(tensor.element_type.safetensors for tensor in tensors.values()):
        query = _gather_query(
            PARAMETERS[operator],
            str(parameter),
            dialect,
            device,
            str(batch_dims) if batch_dims else None,
            out_of_bounds,
            data if isinstance(data, str) else None,
            None if value is None else json.dumps(value),
            asked_dtype,
        )
        return Request("POST", path, read, query, _AS_SAFETENSORS, write_safetensors(tensors), note=note)
    fields = {PARAMETERS[operator]: parameter, "dialect": dialect, "device": device, "output_encoding": "base64"}
    if batch_dims:
        fields["batch_dims"] = batch_dims
    if out_of_bounds is not None:
        fields["out_of_bounds"] = out_of_bounds
    document: dict[str, Any] = {name: json_tensor(tensor) for name, tensor in tensors.items()}
    if isinstance(data, str):
        document["data"] = {"tensor": data}
    if value is not None:
        document["fill_value"] = value
    if asked_dtype is not None:
        document["output_dtype"] = asked_dtype
    body = json.dumps(document | fields).encode()
    return Request("POST", path, read, {}, {"content-type": JSON, "accept": JSON}, [body], note=note)


def to_operator(
    path: str,
    read: Callable[[Answer], Any],
    tensors: Mapping[str, EncodedTensor],
    named: Mapping[str, str],
    fields: Mapping[str, Any],
) -> Request[Any]:
    """Build a request to an operator, in safetensors if it has all element types, else in JSON with base64.

    `named` maps input names to resident tensors; `fields` holds all parameters that are not tensors.
    """
    fields = {**fields, "output_encoding": "base64"}
    if all(tensor.element_type.safetensors for tensor in tensors.values()):
        query = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
        query |= {"tensor" if role == "data" else role: name for role, name in named.items()}
        return Request("POST", path, read, query, _AS_SAFETENSORS, write_safetensors(tensors))
    document: dict[str, Any] = {role: json_tensor(tensor) for role, tensor in tensors.items()}
    document |= {role: {"tensor": name} for role, name in named.items()}
    body = json.dumps(document | fields).encode()
    return Request("POST", path, read, {}, {"content-type": JSON, "accept": JSON}, [body])


def gather_block_quantized(
    data: Any,
    indices: Any,
    scales: Any,
    zero_points: Any,
    parameters: Mapping[str, int],
    out_of_bounds: OutOfBounds | None,
    fill_value: Any,
    output_dtype: Any,
    info: bool,
    as_torch: bool,
) -> Request[Any]:
    """Build the request for a block-quantized gather of arrays or resident tensors. The result is as in `gather`."""
    make: Decode = decode_for_torch if as_torch else decode

    def read(answer: Answer) -> Any:
        found = _answers.read_gathered(answer, make)
        return _answers.with_info(answer, *found) if info else found.array

    tensors = {"indices": encode(as_indices(indices, widen=True))}
    named: dict[str, str] = {}
    for role, given in (("data", data), ("scales", scales), ("zero_points", zero_points)):
        if isinstance(given, str | NamedTensor):
            named[role] = given if isinstance(given, str) else given.name
            check_name(named[role])
        elif given is not None:
            tensors[role] = encode_value(given)
    fields: dict[str, Any] = dict(parameters)
    if out_of_bounds is not None:
        fields["out_of_bounds"] = out_of_bounds
    if fill_value is not None:
        fields["fill_value"] = json_value(fill_value)
    if output_dtype is not None:
        fields["output_dtype"] = dtype_name(output_dtype)
    return to_operator("/gather_block_quantized", read, tensors, named, fields)


def dtype_name(dtype: Any) -> str | None:
    """Return the name of a type that is given by name or as a NumPy type; None for None."""
    return dtype if dtype is None or isinstance(dtype, str) else np.dtype(dtype).name


@lru_cache(256)
def _gather_query(
    parameter_name: str,
    parameter: str,
    dialect: str,
    device: str,
    batch_dims: str | None,
    out_of_bounds: OutOfBounds | None,
    tensor: str | None,
    fill_value: str | None,
    output_dtype: str | None,
) -> Mapping[str, str]:
    """Return the query of a gather in safetensors. Cached, because gathers of one table repeat the same query."""
    query = {
        "dialect": dialect,
        "device": device,
        "output_encoding": "base64",
        "batch_dims": batch_dims,
        "out_of_bounds": out_of_bounds,
        "tensor": tensor,
        "fill_value": fill_value,
        "output_dtype": output_dtype,
        parameter_name: parameter,  # last, because it replaces batch_dims for gathernd
    }
    return {name: value for name, value in query.items() if value is not None}


def put(
    name: str,
    source: Any,
    keys: Any,
    columns: Sequence[str] | str | None,
    tensor: str | None,
    if_match: str | None,
    if_none_match: str | None,
    prefault: bool,
    lock: bool,
    keep: int | None,
    note: str | None,
    replicas: int | None,
    capacity: int | None,
    progress: Progress | bool | None,
) -> Request[TensorInfo]:
    """Build the request for an upload: in raw bytes, the only format that has every element type, or in safetensors if
    there are keys.

    Not retryable: a second attempt would create another version, and so could drop the oldest one.
    """
    path = _path(name)
    tensors = upload_tensors(source, tensor, keys, columns)
    rows = tensors[DATA]
    if len(tensors) > 1:
        content_type, query, body = SAFETENSORS, {}, write_in_order(tensors)
    else:
        content_type, body = RAW, [rows.raw]
        query = {"dtype": rows.element_type.name, "shape": ",".join(map(str, rows.shape))}
    query |= {option: "true" for option, wanted in (("prefault", prefault), ("lock", lock)) if wanted}
    if keep is not None:
        query["keep"] = str(keep)
    if note is not None:
        query["note"] = note
    if replicas is not None:
        query["replicas"] = str(replicas)
    if capacity is not None:
        query["capacity"] = str(capacity)
    headers = {"content-type": content_type, "accept": JSON, **conditions(if_match, if_none_match)}
    told = ProgressBar(name, sum(map(len, body))) if progress is True else progress or None
    return Request("PUT", path, _answers.read_info, query, headers, body, retryable=False, progress=told)


def get(
    name: str,
    rows: tuple[int, int] | slice | None,
    if_match: str | None,
    out: NDArray[Any] | None,
    info: bool,
    as_torch: bool,
    progress: Progress | bool | None,
) -> Request[Any]:
    """Build the request for a download as raw bytes: of all rows or, for `rows` (a, b), of rows a to b - 1.

    The result is written to `out` if that is given.

    Raises TypeError unless `rows` is two integers or a slice with step 1.
    """
    memory = None if out is None else _memory_of(out, as_torch)
    bar = ProgressBar(name) if progress is True else None

    def receive_into(status: int, headers: Headers) -> memoryview | None:
        if bar is not None:
            bar.total = int(headers.get("content-length", 0))
        if out is not None:
            element_type, shape = _answers.type_and_shape(status, headers)
            if (element_type.numpy, shape) != (out.dtype, out.shape):
                raise ValueError(
                    f"out is {out.dtype} of shape {list(out.shape)}, what comes is {element_type.name} of shape "
                    f"{list(shape)}"
                )
        return memory

    def read(answer: Answer) -> Any:
        array: Any = out
        if out is None:
            make: Decode = decode_for_torch if as_torch else decode
            array = make(*_answers.type_and_shape(answer.status, answer.headers), answer.body)
        if not info:
            return array
        version = _answers.version_of(answer.headers)
        return _answers.with_info(answer, array, answer.headers.get("etag"), version=version)

    query = {} if rows is None else {"rows": _range_of(rows)}
    headers = {"accept": RAW, **conditions(if_match, None)}
    told = bar or (progress if callable(progress) else None)
    return Request("GET", f"{_path(name)}/content", read, query, headers, progress=told, receive_into=receive_into)


def _range_of(rows: tuple[int, int] | slice) -> str:
    """Format rows for the query as `a:b`; the default start of a slice is 0."""
    if isinstance(rows, slice) and rows.step in (None, 1):
        rows = (0 if rows.start is None else rows.start, rows.stop)
    try:
        first, end = rows  # type: ignore[misc]  # a slice with a step is refused here
        return f"{operator.index(first)}:{operator.index(end)}"
    except (TypeError, ValueError):
        raise TypeError(
            f"rows are two integers (a, b), or slice(a, b), not {rows!r}; client[name] takes every slice of NumPy's"
        ) from None


def metadata(name: str) -> Request[TensorInfo]:
    """Build the request for a tensor's metadata."""
    return Request("GET", _path(name), _answers.read_info, headers={"accept": JSON})


def set_replicas(name: str, replicas: int) -> Request[TensorInfo]:
    """Build the request that sets the number of replicas. Retryable, since it is idempotent."""
    headers = {"content-type": JSON, "accept": JSON}
    body = json.dumps({"replicas": replicas}).encode()
    return Request("PUT", f"{_path(name)}/replicas", _answers.read_info, {}, headers, [body])


def tensors(after: str | None, limit: int | None) -> Request[Page]:
    """Build the request for one page of the list of tensors."""
    query = {} if after is None else {"after": after}
    if limit is not None:
        query["limit"] = str(limit)
    return Request("GET", "/tensors", _answers.read_page, query, {"accept": JSON})


def delete(name: str, if_match: str | None) -> Request[None]:
    """Build the request that removes a tensor. Not retryable: a second attempt would fail with TensorNotFound."""
    return Request("DELETE", _path(name), lambda _: None, headers=conditions(if_match, None), retryable=False)


def alias(name: str) -> Request[Alias]:
    """Build the request for an alias and the version that it points to."""
    return Request("GET", _alias_path(name), _answers.read_alias, headers={"accept": JSON})


def aliases(after: str | None, limit: int | None) -> Request[AliasPage]:
    """Build the request for one page of the list of aliases."""
    query = {} if after is None else {"after": after}
    if limit is not None:
        query["limit"] = str(limit)
    return Request("GET", "/aliases", _answers.read_alias_page, query, {"accept": JSON})


def put_alias(name: str, tensor: str, if_match: str | None, if_none_match: str | None) -> Request[Alias]:
    """Build the request that creates or moves an alias. Retryable without conditions, since it is then idempotent."""
    headers = {"content-type": JSON, "accept": JSON, **conditions(if_match, if_none_match)}
    retryable = if_match is None and if_none_match is None
    body = json.dumps({"tensor": tensor}).encode()
    return Request("PUT", _alias_path(name), _answers.read_alias, {}, headers, [body], retryable)


def move_aliases(
    targets: Mapping[str, str], if_match: Mapping[str, str] | None, if_none_match: Mapping[str, str] | None
) -> Request[list[Alias]]:
    """Build the request that creates or moves several aliases at once. Retryable without conditions."""
    moves = {alias: {"tensor": tensor} for alias, tensor in targets.items()}
    for field, etags in (("if_match", if_match), ("if_none_match", if_none_match)):
        for alias, etag in (etags or {}).items():
            if alias not in moves:
                raise ValueError(f"{field} has a condition for {alias!r}, which is not among the aliases to move")
            moves[alias][field] = etag
    body = json.dumps({"aliases": moves}).encode()
    headers = {"content-type": JSON, "accept": JSON}
    retryable = not if_match and not if_none_match
    return Request("PUT", "/aliases", _answers.read_alias_list, {}, headers, [body], retryable)


def delete_alias(name: str, if_match: str | None) -> Request[None]:
    """Build the request that removes an alias. Not retryable: a second attempt would fail with TensorNotFound."""
    return Request("DELETE", _alias_path(name), lambda _: None, headers=conditions(if_match, None), retryable=False)


def ready() -> Request[None]:
    """Build the request for the readiness check. The service responds with NotReady if it is not ready."""
    return Request("GET", "/readyz", lambda _: None, headers={"accept": JSON})


def check_name(name: str) -> None:
    """Raise ValueError if a resident tensor cannot have this name, and TypeError if it is not a str."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a resident tensor is a str, not {type(name).__name__}")
    _check_text(name)


@lru_cache(1024)
def _check_text(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name of a resident tensor is 1 to 128 of A-Z a-z 0-9 . _ -, begins with a letter or a digit, and may "
            f"have @ and a version behind it, not {name!r}"
        )


def _path(name: str) -> str:
    check_name(name)
    return f"/tensors/{name}"


def _alias_path(name: str) -> str:
    check_name(name)
    return f"/aliases/{name}"


def conditions(if_match: str | None, if_none_match: str | None) -> dict[str, str]:
    """Return the header fields for conditions on an ETag."""
    found = {"if-match": if_match, "if-none-match": if_none_match}
    return {name: value for name, value in found.items() if value is not None}


def json_value(value: Any) -> Any:
    """Convert a scalar of Python, NumPy or PyTorch (including arrays of rank 0) to the service's JSON form.

    Non-finite floats become names such as "NaN"; complex numbers become [re, im].
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, complex):
        return [json_value(value.real), json_value(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def json_tensor(tensor: EncodedTensor) -> dict[str, Any]:
    """Return the JSON form of a tensor, with its items in base64."""
    return {
        "dtype": tensor.element_type.name,
        "shape": list(tensor.shape),
        "base64": b64encode(tensor.raw).decode(),
    }


def _memory_of(out: NDArray[Any], as_torch: bool) -> memoryview:
    """Return the memory of the array to download into. Raises ValueError if it cannot be used."""
    row = ELEMENT_TYPES.get(out.dtype.name)
    if row is None or row.numpy != out.dtype or not (out.flags.c_contiguous and out.flags.writeable) or as_torch:
        raise ValueError("out must be a NumPy array of a number's type, little endian, contiguous and writeable")
    return out.reshape(math.prod(out.shape)).view(np.uint8).data


def _one_tuple(indices: NDArray[Any]) -> Any:
    """Return a function that adds a note to errors, since a caller may have meant 1-D `indices` as row numbers."""

    def note(error: GatherNDError) -> str | None:
        if not isinstance(error, IndexOutOfBounds | IndexDepthOutOfRange):
            return None
        shown = ", ".join(map(str, indices[:3].tolist())) + (", …" if len(indices) > 3 else "")
        columns = ", ".join(f"[{entry}]" for entry in indices[:3].tolist()) + (", …" if len(indices) > 3 else "")
        return f"for gathernd [{shown}] is one tuple, of {len(indices)} axes; rows are [{columns}], or use gather"

    return note
