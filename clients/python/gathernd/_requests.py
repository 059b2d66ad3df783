"""Every call as data: how its request looks and how its answer is read. No input or output happens here.

Both clients run what these functions make, so that neither knows anything of the service's routes and formats.
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

from ._arrays import KINDS, Buffer, Packed, as_array, as_indices, packed, unpacked
from ._binary import join, only_tensor
from .errors import UnexpectedAnswer

T = TypeVar("T")
Reduction = Literal["none", "add", "mul", "min", "max"]
Progress = Callable[[int], None]

JSON: Final = "application/json"
SAFETENSORS: Final = "application/x-safetensors"
RAW: Final = "application/octet-stream"
# What the binary format lacks comes as JSON, where the service can only tell once it has looked at its own tensor.
EITHER: Final = f"{SAFETENSORS}, {JSON};q=0.5"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer: header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: memoryview


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """A request and the function that reads its answer.

    `repeatable` says that sending it twice does what sending it once does, so that it may be sent again after the
    connection broke. `progress` is called with the bytes of the body sent so far.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Sequence[Buffer] = ()
    repeatable: bool = True
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
    """Some resident tensors, and after which name the next ones start (None: there are no more)."""

    tensors: list[TensorInfo]
    next: str | None


def gather(
    operator: Literal["gathernd", "gather"],
    data: Any,
    indices: Any,
    parameter: int,
    dialect: str,
    device: str,
) -> Request[NDArray[Any]]:
    """A gather; binary where the format has both types, else JSON with base64."""
    parameter_name = "batch_dims" if operator == "gathernd" else "axis"
    index_items = packed(as_indices(indices, widen=dialect.startswith("onnx")))
    fields = {parameter_name: parameter, "dialect": dialect, "device": device, "output_encoding": "base64"}
    tensors = {"indices": index_items}
    if isinstance(data, str):
        _check_name(data)
    else:
        tensors["data"] = packed(as_array(data))
    if all(tensor.kind.safetensors for tensor in tensors.values()):
        query = {name: str(value) for name, value in fields.items()}
        if isinstance(data, str):
            query["tensor"] = data
        headers = {"content-type": SAFETENSORS, "accept": EITHER}
        return Request("POST", f"/{operator}", _read_tensor, query, headers, join(tensors))
    document: dict[str, Any] = {name: _encoded(tensor) for name, tensor in tensors.items()}
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
    """An upload, raw: the one format that has every type."""
    tensor = packed(as_array(array))
    query = {"dtype": tensor.kind.name, "shape": ",".join(map(str, tensor.shape))}
    query |= {option: "true" for option, wanted in (("prefault", prefault), ("lock", lock)) if wanted}
    headers = {"content-type": RAW, "accept": JSON, **_conditions(if_match, if_none_match)}
    repeatable = if_match is None and if_none_match is None
    return Request("PUT", _path(name), _read_info, query, headers, [tensor.raw], repeatable, progress)


def get(
    name: str, rows: tuple[int, int] | None, if_match: str | None, progress: Progress | None
) -> Request[NDArray[Any]]:
    """A download, whole or rows a to b of the first dimension, raw."""
    query = {} if rows is None else {"rows": f"{rows[0]}:{rows[1]}"}
    headers = {"accept": RAW, **_conditions(if_match, None)}
    return Request("GET", f"{_path(name)}/content", _read_raw, query, headers, progress=progress)


def metadata(name: str) -> Request[TensorInfo]:
    """What the service knows of a tensor."""
    return Request("GET", _path(name), _read_info, headers={"accept": JSON})


def tensors(after: str | None, limit: int | None) -> Request[Page]:
    """One page of the tensors."""
    query = {} if after is None else {"after": after}
    if limit is not None:
        query["limit"] = str(limit)
    return Request("GET", "/tensors", _read_page, query, {"accept": JSON})


def delete(name: str, if_match: str | None) -> Request[None]:
    """A removal. Not repeatable: the second would not find the tensor."""
    return Request("DELETE", _path(name), lambda _: None, headers=_conditions(if_match, None), repeatable=False)


def scatter(
    name: str,
    indices: Any,
    updates: Any,
    reduction: Reduction,
    if_match: str | None,
    idempotency_key: str | None,
) -> Request[str]:
    """A scatter, which always carries an Idempotency-Key: that makes it repeatable."""
    tensors = {"indices": packed(as_indices(indices, widen=True)), "updates": packed(as_array(updates))}
    headers = {"accept": JSON, "idempotency-key": idempotency_key or str(uuid.uuid4()), **_conditions(if_match, None)}
    path = f"{_path(name)}/scatter"
    if all(tensor.kind.safetensors for tensor in tensors.values()):
        headers["content-type"] = SAFETENSORS
        return Request("POST", path, _read_etag, {"reduction": reduction}, headers, join(tensors))
    headers["content-type"] = JSON
    document = {name: _encoded(tensor) for name, tensor in tensors.items()} | {"reduction": reduction}
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


def _encoded(tensor: Packed) -> dict[str, Any]:
    return {
        "dtype": tensor.kind.name,
        "shape": list(tensor.shape),
        "base64": b64encode(tensor.raw).decode(),
    }


def _document(answer: Answer) -> Any:
    try:
        return json.loads(bytes(answer.body))
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not JSON: {error}", answer.status) from error


def _read_tensor(answer: Answer) -> NDArray[Any]:
    if answer.headers.get("content-type", "").startswith(SAFETENSORS):
        return only_tensor(answer.body)
    try:
        output = _document(answer)["output"]
        kind, shape, text = KINDS[output["dtype"]], tuple(output["shape"]), output["base64"]
        return unpacked(kind, shape, bytearray(b64decode(text, validate=True)))
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(f"the answer has no output: {error!r}", answer.status) from error


def _read_raw(answer: Answer) -> NDArray[Any]:
    try:
        kind = KINDS[answer.headers["x-gathernd-dtype"]]
        text = answer.headers["x-gathernd-shape"].strip()
        shape = tuple(int(size) for size in text.split(",")) if text else ()
    except (KeyError, ValueError) as error:
        raise UnexpectedAnswer(f"the answer does not say its dtype and shape: {error!r}", answer.status) from error
    return unpacked(kind, shape, answer.body)


def _info(body: Any) -> TensorInfo:
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
        return _info(_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a tensor's metadata: {error!r}", answer.status) from error


def _read_page(answer: Answer) -> Page:
    try:
        document = _document(answer)
        return Page([_info(body) for body in document["tensors"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of tensors: {error!r}", answer.status) from error


def _read_etag(answer: Answer) -> str:
    try:
        etag = _document(answer)["etag"]
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer has no etag: {error!r}", answer.status) from error
    return str(etag)
