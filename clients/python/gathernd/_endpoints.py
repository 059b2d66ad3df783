"""The service's endpoints, a function each: it returns the `Request` to send, with the function that reads the answer.

Both clients, sync and async, send what these functions return. No input or output happens here.
"""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypeVar

from numpy.typing import NDArray

from ._array_bytes import ELEMENT_TYPES, Buffer, EncodedTensor, as_array, as_indices, decode, encode
from ._safetensors import read_safetensors, write_safetensors
from .errors import UnexpectedAnswer

T = TypeVar("T")
Operator = Literal["gathernd", "gather", "gather_elements"]
Reduction = Literal["none", "add", "mul", "min", "max"]
Progress = Callable[[int], None]

JSON: Final = "application/json"
SAFETENSORS: Final = "application/x-safetensors"
PARAMETERS: Final[Mapping[Operator, str]] = {"gathernd": "batch_dims", "gather": "axis", "gather_elements": "axis"}
"""The name of each operator's parameter."""
RAW: Final = "application/octet-stream"
# complex128 and string, which safetensors lacks, come as JSON; of a resident tensor only the service knows the type.
SAFETENSORS_OR_JSON: Final = f"{SAFETENSORS}, {JSON};q=0.5"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the service, of any status; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A request and the function that reads its answer.

    `retryable` says that sending it twice does what sending it once does, so that it may be sent again after the
    connection broke. `progress` is called with the bytes so far: sent, of a request with a body, else received.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[Buffer] = ()
    retryable: bool = True
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A resident tensor as the service describes it: times in RFC 3339, `bytes` of its items.

    `etag` names this content and no other; `sha256` is the hash of dtype, shape and items as uploaded, equal for equal
    uploads. `prefault` and `lock` say whether its content is read into memory ahead of requests, and kept there.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    etag: str
    created: str
    modified: str
    prefault: bool = False
    lock: bool = False
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the list of tensors; `next` is the `after` of the next page, None on the last one."""

    tensors: list[TensorInfo]
    next: str | None


def gather(
    operator: Operator,
    data: Any,
    indices: Any,
    parameter: int,
    dialect: str,
    device: str,
) -> Request[NDArray[Any]]:
    """A gather, as safetensors where that has both element types, else as JSON with base64."""
    encoded_indices = encode(as_indices(indices, widen=dialect.startswith("onnx")))
    fields = {PARAMETERS[operator]: parameter, "dialect": dialect, "device": device, "output_encoding": "base64"}
    tensors = {"indices": encoded_indices}
    if isinstance(data, str):
        _check_name(data)
    else:
        tensors["data"] = encode(as_array(data))
    if all(tensor.element_type.safetensors for tensor in tensors.values()):
        query = {name: str(value) for name, value in fields.items()}
        if isinstance(data, str):
            query["tensor"] = data
        headers = {"content-type": SAFETENSORS, "accept": SAFETENSORS_OR_JSON}
        return Request("POST", f"/{operator}", _read_tensor, query, headers, write_safetensors(tensors))
    document: dict[str, Any] = {name: _json_tensor(tensor) for name, tensor in tensors.items()}
    if isinstance(data, str):
        document["data"] = {"tensor": data}
    body = json.dumps(document | fields).encode()
    return Request("POST", f"/{operator}", _read_tensor, {}, {"content-type": JSON, "accept": JSON}, [body])


def put(
    name: str,
    array: Any,
    if_match: str | None,
    if_none_match: str | None,
    prefault: bool,
    lock: bool,
    progress: Progress | None,
) -> Request[TensorInfo]:
    """An upload as raw bytes, the one format that has every element type."""
    tensor = encode(as_array(array))
    query = {"dtype": tensor.element_type.name, "shape": ",".join(map(str, tensor.shape))}
    query |= {option: "true" for option, wanted in (("prefault", prefault), ("lock", lock)) if wanted}
    headers = {"content-type": RAW, "accept": JSON, **_conditions(if_match, if_none_match)}
    retryable = if_match is None and if_none_match is None
    return Request("PUT", _path(name), _read_info, query, headers, [tensor.raw], retryable, progress)


def get(
    name: str, rows: tuple[int, int] | None, if_match: str | None, progress: Progress | None
) -> Request[NDArray[Any]]:
    """A download as raw bytes, whole or `rows` (a, b) of the first dimension, b not included."""
    query = {} if rows is None else {"rows": f"{rows[0]}:{rows[1]}"}
    headers = {"accept": RAW, **_conditions(if_match, None)}
    return Request("GET", f"{_path(name)}/content", _read_raw, query, headers, progress=progress)


def metadata(name: str) -> Request[TensorInfo]:
    """The metadata of a tensor."""
    return Request("GET", _path(name), _read_info, headers={"accept": JSON})


def tensors(after: str | None, limit: int | None) -> Request[Page]:
    """One page of the tensors."""
    query = {} if after is None else {"after": after}
    if limit is not None:
        query["limit"] = str(limit)
    return Request("GET", "/tensors", _read_page, query, {"accept": JSON})


def delete(name: str, if_match: str | None) -> Request[None]:
    """A removal. Not retryable: the second one would fail with TensorNotFound."""
    return Request("DELETE", _path(name), lambda _: None, headers=_conditions(if_match, None), retryable=False)


def scatter(
    name: str,
    indices: Any,
    updates: Any,
    reduction: Reduction,
    if_match: str | None,
    idempotency_key: str | None,
) -> Request[str]:
    """A scatter, which always carries an Idempotency-Key: that makes it retryable."""
    tensors = {"indices": encode(as_indices(indices, widen=True)), "updates": encode(as_array(updates))}
    headers = {"accept": JSON, "idempotency-key": idempotency_key or str(uuid.uuid4()), **_conditions(if_match, None)}
    path = f"{_path(name)}/scatter"
    if all(tensor.element_type.safetensors for tensor in tensors.values()):
        headers["content-type"] = SAFETENSORS
        return Request("POST", path, _read_etag, {"reduction": reduction}, headers, write_safetensors(tensors))
    headers["content-type"] = JSON
    document = {name: _json_tensor(tensor) for name, tensor in tensors.items()} | {"reduction": reduction}
    return Request("POST", path, _read_etag, {}, headers, [json.dumps(document).encode()])


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name of a resident tensor is 1 to 128 of A-Z a-z 0-9 . _ -, not {name!r}")


def _path(name: str) -> str:
    _check_name(name)
    return f"/tensors/{name}"


def _conditions(if_match: str | None, if_none_match: str | None) -> dict[str, str]:
    found = {"if-match": if_match, "if-none-match": if_none_match}
    return {name: value for name, value in found.items() if value is not None}


def _json_tensor(tensor: EncodedTensor) -> dict[str, Any]:
    return {
        "dtype": tensor.element_type.name,
        "shape": list(tensor.shape),
        "base64": b64encode(tensor.raw).decode(),
    }


def _json_document(answer: Answer) -> Any:
    try:
        return json.loads(bytes(answer.body))
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not JSON: {error}", answer.status) from error


def _read_tensor(answer: Answer) -> NDArray[Any]:
    if answer.headers.get("content-type", "").startswith(SAFETENSORS):
        return read_safetensors(answer.body)
    try:
        output = _json_document(answer)["output"]
        element_type, shape, text = ELEMENT_TYPES[output["dtype"]], tuple(output["shape"]), output["base64"]
        return decode(element_type, shape, bytearray(b64decode(text, validate=True)))
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(f"the answer has no output: {error!r}", answer.status) from error


def _read_raw(answer: Answer) -> NDArray[Any]:
    try:
        element_type = ELEMENT_TYPES[answer.headers["x-gathernd-dtype"]]
        text = answer.headers["x-gathernd-shape"].strip()
        shape = tuple(int(size) for size in text.split(",")) if text else ()
    except (KeyError, ValueError) as error:
        raise UnexpectedAnswer(f"the answer does not say its dtype and shape: {error!r}", answer.status) from error
    return decode(element_type, shape, answer.body)


def _tensor_info(body: Any) -> TensorInfo:
    return TensorInfo(
        name=body["name"],
        dtype=body["dtype"],
        shape=tuple(body["shape"]),
        bytes=body["bytes"],
        etag=body["etag"],
        created=body["created"],
        modified=body["modified"],
        prefault=body.get("prefault", False),
        lock=body.get("lock", False),
        sha256=body.get("sha256", ""),
    )


def _read_info(answer: Answer) -> TensorInfo:
    try:
        return _tensor_info(_json_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a tensor's metadata: {error!r}", answer.status) from error


def _read_page(answer: Answer) -> Page:
    try:
        document = _json_document(answer)
        return Page([_tensor_info(body) for body in document["tensors"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of tensors: {error!r}", answer.status) from error


def _read_etag(answer: Answer) -> str:
    try:
        etag = _json_document(answer)["etag"]
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer has no etag: {error!r}", answer.status) from error
    return str(etag)
