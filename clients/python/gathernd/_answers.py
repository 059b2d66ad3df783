"""Reads the service's answers: arrays with their details, metadata of tensors, pages of lists."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ._array_bytes import ELEMENT_TYPES, Buffer, ElementType
from ._messages import Answer, Headers
from ._safetensors import read_safetensors, read_tensors
from .errors import UnexpectedAnswer

SAFETENSORS: Final = "application/x-safetensors"
Encoded = tuple[ElementType, tuple[int, ...], memoryview]
"""Type, shape and bytes of a tensor."""
Decode = Callable[[ElementType, Sequence[int], Buffer], Any]
"""Makes an array, or another library's tensor, of type, shape and bytes."""
_STAGE: Final = re.compile(r"([a-z]+);dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Result:
    """An array with what the service says of it, as `with_info=True` returns it.

    array       the array, or PyTorch's tensor
    etag        of the content of the resident tensor that was read, None for data that was sent along
    device      cpu or gpu: where it was gathered; None for a download
    request_id  by which the service's log knows the request
    timings     seconds that the service spent in each of its stages, such as parse, queue, kernel and encode
    replaced    how many components of the indices were out of bounds, None if that is an error
    version     number of the version of the resident tensor that was read, None for data that was sent along
    missing     how many of the keys the table lacks, None for a gather by position
    found       a bool for each key, true if the table has it; None unless the call asks with `found=True`
    """

    array: Any
    etag: str | None
    device: str | None
    request_id: str
    timings: Mapping[str, float]
    replaced: int | None = None
    version: int | None = None
    missing: int | None = None
    found: Any = None


@dataclass(frozen=True, slots=True)
class KeysInfo:
    """The keys of a table: their type (int64, uint64 or string), and the hash of them as uploaded."""

    dtype: str
    sha256: str


@dataclass(frozen=True, slots=True)
class TableRange:
    """Rows `start` to `stop` - 1 of a table in a cluster, and the names of the `shards` that they are on.

    Once the version has taken a scatter, `primary` orders those to this range, and each shard of `in_sync` has all that
    were acknowledged; before, they are None and empty.
    """

    start: int
    stop: int
    shards: tuple[str, ...]
    primary: str | None = None
    in_sync: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A version of a resident tensor as the service describes it: times in RFC 3339, `bytes` of its items.

    `version` is its number, and `versions` are the numbers of all versions of the tensor that are kept. `etag` names
    this content and no other; `sha256` is the hash of dtype, shape and items as uploaded, equal for equal uploads.
    `prefault` and `lock` say whether its content is read into memory ahead of requests, and kept there. `note` is what
    was said of it when it was uploaded. `replicas` is on how many shards each range of its rows is to be, None
    unless it is in a cluster; there `metadata` has its first 1000 `ranges`, too. `keys` is None
    for a tensor whose rows have no keys; with keys, `capacity` is for how many rows it has room before it grows.
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
    version: int = 1
    versions: tuple[int, ...] = ()
    note: str | None = None
    replicas: int | None = None
    ranges: tuple[TableRange, ...] = ()
    keys: KeysInfo | None = None
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class ScatterInfo:
    """What the service says of a scatter, as `scatter(..., with_info=True)` returns it.

    etag             of the tensor's content after the scatter
    ranges           in a cluster: how many row ranges it changed; None on one machine
    version          number of the version that it changed
    request_id       by which the service's log knows the request
    idempotency_key  the key that it was sent with
    """

    etag: str
    ranges: int | None
    version: int | None
    request_id: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """What the service says of an upsert or a removal of rows by key.

    etag             of the table's content after it
    rows             how many rows the table has then
    inserted         how many keys of an upsert were new
    removed          how many rows a removal took
    missing          how many keys of a removal the table did not have
    version          number of the version that it changed
    request_id       by which the service's log knows the request
    idempotency_key  the key that it was sent with
    ranges           in a cluster: how many row ranges it changed; None on one machine
    """

    etag: str
    rows: int
    inserted: int
    removed: int
    missing: int
    version: int | None
    request_id: str
    idempotency_key: str
    ranges: int | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """An alias and the version that it names: `tensor` is `NAME@7`, which is `version` 7 of the tensor `name`.

    `etag` is another one after each move; times are in RFC 3339.
    """

    alias: str
    tensor: str
    name: str
    version: int
    etag: str
    created: str
    modified: str


@dataclass(frozen=True, slots=True)
class AliasPage:
    """A page of the list of aliases; `next` is the `after` of the next page, None on the last one."""

    aliases: list[Alias]
    next: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the list of tensors; `next` is the `after` of the next page, None on the last one."""

    tensors: list[TensorInfo]
    next: str | None


class Gathered(NamedTuple):
    """The output of a gather; the other members as in `Result`."""

    array: Any
    etag: str | None
    device: str | None
    replaced: int | None
    version: int | None
    missing: int | None
    found: Any


def read_gathered(answer: Answer, decode: Decode) -> Gathered:
    """Read the answer to a gather."""
    headers = answer.headers
    if headers.get("content-type", "").startswith(SAFETENSORS):
        replaced, missing = headers.get("x-gathernd-replaced"), headers.get("x-gathernd-missing")
        output, found = (read_safetensors(answer.body), None) if missing is None else _read_found(answer)
        return Gathered(
            decode(*output),
            headers.get("x-gathernd-data-etag"),
            headers.get("x-gathernd-device"),
            None if replaced is None else int(replaced),
            version_of(headers),
            None if missing is None else int(missing),
            None if found is None else decode(*found),
        )
    try:
        document = json_document(answer)
        output, found = read_tensor(document["output"]), document.get("found")
        known = None if found is None else read_tensor(found)
        etag, device, replaced = (document.get(member) for member in ("data_etag", "device", "replaced"))
        version, missing = document.get("version"), document.get("missing")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer has no output: {error!r}", answer.status) from error
    array, there = decode(*output), None if known is None else decode(*known)
    return Gathered(array, etag, device, replaced, version, missing, there)


def read_tensor(body: Any) -> Encoded:
    """A tensor of a JSON answer, in base64. Raises KeyError, TypeError and ValueError."""
    raw = memoryview(bytearray(b64decode(body["base64"], validate=True)))
    return ELEMENT_TYPES[body["dtype"]], tuple(body["shape"]), raw


def _read_found(answer: Answer) -> tuple[Encoded, Encoded | None]:
    """The output of a gather by key, and for each key whether the table has it, if the request asks."""
    tensors = read_tensors(answer.body)
    if "output" not in tensors:
        raise UnexpectedAnswer(f"the answer has no output but {', '.join(tensors)}", answer.status)
    return tensors["output"], tensors.get("found")


def version_of(headers: Headers) -> int | None:
    """The number of the version that an answer is of, None if it does not say one."""
    text = headers.get("x-gathernd-data-version", "")
    return int(text) if text.isdigit() else None


def with_info(
    answer: Answer,
    array: Any,
    etag: str | None,
    device: str | None = None,
    replaced: int | None = None,
    version: int | None = None,
    missing: int | None = None,
    found: Any = None,
) -> Result:
    """`array` with what the header of its answer says."""
    stages = _STAGE.findall(answer.headers.get("server-timing", ""))
    timings = {stage: float(milliseconds) / 1000 for stage, milliseconds in stages}
    request_id = answer.headers.get("x-request-id", "")
    return Result(array, etag, device, request_id, timings, replaced, version, missing, found)


def type_and_shape(status: int, headers: Headers) -> tuple[ElementType, tuple[int, ...]]:
    """Type and shape of a tensor that comes as raw bytes."""
    try:
        element_type = ELEMENT_TYPES[headers["x-gathernd-dtype"]]
        text = headers["x-gathernd-shape"].strip()
        return element_type, tuple(int(size) for size in text.split(",")) if text else ()
    except (KeyError, ValueError) as error:
        raise UnexpectedAnswer(f"the answer does not say its dtype and shape: {error!r}", status) from error


def json_document(answer: Answer) -> Any:
    """The JSON document of an answer."""
    try:
        return json.loads(bytes(answer.body))
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not JSON: {error}", answer.status) from error


def read_info(answer: Answer) -> TensorInfo:
    """The metadata of a tensor."""
    try:
        return tensor_info(json_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a tensor's metadata: {error!r}", answer.status) from error


def read_page(answer: Answer) -> Page:
    """A page of the list of tensors."""
    try:
        document = json_document(answer)
        return Page([tensor_info(body) for body in document["tensors"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of tensors: {error!r}", answer.status) from error


def read_alias(answer: Answer) -> Alias:
    """An alias."""
    try:
        return _alias(json_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not an alias: {error!r}", answer.status) from error


def read_alias_page(answer: Answer) -> AliasPage:
    """A page of the list of aliases."""
    try:
        document = json_document(answer)
        return AliasPage([_alias(body) for body in document["aliases"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of aliases: {error!r}", answer.status) from error


def read_alias_list(answer: Answer) -> list[Alias]:
    """The aliases that a move returns."""
    return read_alias_page(answer).aliases


def _alias(body: Any) -> Alias:
    tensor = str(body["tensor"])
    name = tensor.partition("@")[0]
    return Alias(body["alias"], tensor, name, body["version"], body["etag"], body["created"], body["modified"])


def read_scatter(answer: Answer, idempotency_key: str) -> ScatterInfo:
    """Read the answer to a scatter."""
    try:
        document = json_document(answer)
        etag, ranges = str(document["etag"]), document.get("ranges")
    except (KeyError, TypeError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer has no etag: {error!r}", answer.status) from error
    request_id = answer.headers.get("x-request-id", "")
    return ScatterInfo(etag, ranges, version_of(answer.headers), request_id, idempotency_key)


def read_rows_changed(answer: Answer, idempotency_key: str) -> RowsChanged:
    """Read the answer to an upsert or a removal of rows."""
    try:
        document = json_document(answer)
        counts = {name: int(document.get(name, 0)) for name in ("inserted", "removed", "missing")}
        etag, rows, ranges = str(document["etag"]), int(document["rows"]), document.get("ranges")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer does not say what changed: {error!r}", answer.status) from error
    request_id = answer.headers.get("x-request-id", "")
    return RowsChanged(
        etag, rows, **counts, version=version_of(answer.headers), request_id=request_id,
        idempotency_key=idempotency_key, ranges=ranges,
    )  # fmt: skip


def tensor_info(body: Any) -> TensorInfo:
    """The metadata of a tensor in an answer. Raises KeyError and TypeError."""
    keys = body.get("keys")
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
        version=body.get("version", 1),
        versions=tuple(body.get("versions", ())),
        note=body.get("note"),
        replicas=body.get("replicas"),
        ranges=tuple(_table_range(one) for one in body.get("ranges", ())),
        keys=None if keys is None else KeysInfo(keys["dtype"], keys["sha256"]),
        capacity=body.get("capacity"),
    )


def _table_range(body: Any) -> TableRange:
    in_sync = tuple(body.get("in_sync", ()))
    return TableRange(body["start"], body["stop"], tuple(body["shards"]), body.get("primary"), in_sync)
