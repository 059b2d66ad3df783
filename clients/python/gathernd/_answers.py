"""Parses the service's answers: arrays with their details, tensor metadata, pages of lists."""

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
"""Builds an array, or another library's tensor, from type, shape and bytes."""
_STAGE: Final = re.compile(r"([a-z]+);dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Result:
    """An array with its details, as returned with `with_info=True`.

    array       the array, or the PyTorch tensor
    etag        ETag of the resident tensor's data that was read; None for data sent with the request
    device      device that ran the gather, cpu or gpu; None for a download
    request_id  ID of the request in the service's log
    timings     seconds that the service spent in each of its stages, such as parse, queue, kernel and encode
    replaced    number of index components that were out of bounds and replaced; None if such indices are an error
    version     version number of the resident tensor that was read; None for data sent with the request
    missing     number of keys that the table does not have; None for a gather by position
    found       one bool per key: whether the table has it; None without `found=True`
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
    """The keys of a table: their type (int64, uint64 or string), and the SHA-256 hash of the uploaded keys."""

    dtype: str
    sha256: str


@dataclass(frozen=True, slots=True)
class TableRange:
    """Rows `start` to `stop` - 1 of a table in a cluster, and the names of the `shards` that hold them.

    After the first scatter into the version, `primary` is the shard that orders the scatters into this range, and
    `in_sync` are the shards that have every acknowledged scatter. Before that, `primary` is None and `in_sync` is
    empty.
    """

    start: int
    stop: int
    shards: tuple[str, ...]
    primary: str | None = None
    in_sync: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The metadata of a version of a resident tensor.

    `bytes` is the size of its items; `created` and `modified` are in RFC 3339. `version` is its number, and `versions`
    are the numbers of all retained versions. `etag` identifies this version of the data. `sha256` is the hash of dtype,
    shape and items as uploaded; equal uploads have equal hashes. `prefault` and `lock` say whether the data is loaded
    into memory before requests need it, and whether it is locked there. `note` is the note given with the upload. In a
    cluster, `replicas` is the number of shards that should hold each row range, and `metadata` returns the first 1000
    `ranges`; on a single machine, `replicas` is None. `keys` is None for a tensor without keys; with keys, `capacity`
    is the number of rows it can hold before it grows.
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
    """The outcome of a scatter, as returned by `scatter(..., with_info=True)`.

    etag             ETag of the tensor's data after the scatter
    ranges           in a cluster, the number of row ranges that it changed; None on a single machine
    version          number of the version that it changed
    request_id       ID of the request in the service's log
    idempotency_key  Idempotency-Key of the request
    """

    etag: str
    ranges: int | None
    version: int | None
    request_id: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class RowsChanged:
    """The outcome of an upsert or a removal of rows by key.

    etag             ETag of the table's data after the change
    rows             number of rows after the change
    inserted         number of new keys in an upsert
    removed          number of rows that were removed
    missing          number of keys in a removal that the table did not have
    version          number of the version that it changed
    request_id       ID of the request in the service's log
    idempotency_key  Idempotency-Key of the request
    ranges           in a cluster, the number of row ranges that it changed; None on a single machine
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
    """An alias and the version that it points to: `tensor` is `NAME@7`, that is `version` 7 of the tensor `name`.

    `etag` changes with each move; times are in RFC 3339.
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
    """A page of the list of aliases; `next` is the `after` parameter of the next page, None on the last page."""

    aliases: list[Alias]
    next: str | None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the list of tensors; `next` is the `after` parameter of the next page, None on the last page."""

    tensors: list[TensorInfo]
    next: str | None


class Gathered(NamedTuple):
    """The output of a gather; the fields are those of `Result`."""

    array: Any
    etag: str | None
    device: str | None
    replaced: int | None
    version: int | None
    missing: int | None
    found: Any


def read_gathered(answer: Answer, decode: Decode) -> Gathered:
    """Parse the answer to a gather."""
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
    """Parse a base64 tensor in a JSON answer. Raises KeyError, TypeError and ValueError."""
    raw = memoryview(bytearray(b64decode(body["base64"], validate=True)))
    return ELEMENT_TYPES[body["dtype"]], tuple(body["shape"]), raw


def _read_found(answer: Answer) -> tuple[Encoded, Encoded | None]:
    """Return the output of a gather by key, and its `found` array (None if the request did not include `found`)."""
    tensors = read_tensors(answer.body)
    if "output" not in tensors:
        raise UnexpectedAnswer(f"the answer has no output but {', '.join(tensors)}", answer.status)
    return tensors["output"], tensors.get("found")


def version_of(headers: Headers) -> int | None:
    """Return the version number in an answer's headers, or None if there is none."""
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
    """Return a Result with `array` and the details in its answer's headers."""
    stages = _STAGE.findall(answer.headers.get("server-timing", ""))
    timings = {stage: float(milliseconds) / 1000 for stage, milliseconds in stages}
    request_id = answer.headers.get("x-request-id", "")
    return Result(array, etag, device, request_id, timings, replaced, version, missing, found)


def type_and_shape(status: int, headers: Headers) -> tuple[ElementType, tuple[int, ...]]:
    """Return type and shape of a raw-bytes tensor from its answer's headers."""
    try:
        element_type = ELEMENT_TYPES[headers["x-gathernd-dtype"]]
        text = headers["x-gathernd-shape"].strip()
        return element_type, tuple(int(size) for size in text.split(",")) if text else ()
    except (KeyError, ValueError) as error:
        raise UnexpectedAnswer(f"the answer does not say its dtype and shape: {error!r}", status) from error


def json_document(answer: Answer) -> Any:
    """Parse the answer's body as JSON. Raises UnexpectedAnswer."""
    try:
        return json.loads(bytes(answer.body))
    except ValueError as error:
        raise UnexpectedAnswer(f"the answer is not JSON: {error}", answer.status) from error


def read_info(answer: Answer) -> TensorInfo:
    """Parse the metadata of a tensor."""
    try:
        return tensor_info(json_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a tensor's metadata: {error!r}", answer.status) from error


def read_page(answer: Answer) -> Page:
    """Parse a page of the list of tensors."""
    try:
        document = json_document(answer)
        return Page([tensor_info(body) for body in document["tensors"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of tensors: {error!r}", answer.status) from error


def read_alias(answer: Answer) -> Alias:
    """Parse an alias."""
    try:
        return _alias(json_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not an alias: {error!r}", answer.status) from error


def read_alias_page(answer: Answer) -> AliasPage:
    """Parse a page of the list of aliases."""
    try:
        document = json_document(answer)
        return AliasPage([_alias(body) for body in document["aliases"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of aliases: {error!r}", answer.status) from error


def read_alias_list(answer: Answer) -> list[Alias]:
    """Parse the list of aliases that a move returns."""
    return read_alias_page(answer).aliases


def _alias(body: Any) -> Alias:
    tensor = str(body["tensor"])
    name = tensor.partition("@")[0]
    return Alias(body["alias"], tensor, name, body["version"], body["etag"], body["created"], body["modified"])


def read_scatter(answer: Answer, idempotency_key: str) -> ScatterInfo:
    """Parse the answer to a scatter."""
    try:
        document = json_document(answer)
        etag, ranges = str(document["etag"]), document.get("ranges")
    except (KeyError, TypeError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer has no etag: {error!r}", answer.status) from error
    request_id = answer.headers.get("x-request-id", "")
    return ScatterInfo(etag, ranges, version_of(answer.headers), request_id, idempotency_key)


def read_rows_changed(answer: Answer, idempotency_key: str) -> RowsChanged:
    """Parse the answer to an upsert or a removal of rows."""
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
    """Convert a tensor's metadata from its JSON form. Raises KeyError and TypeError."""
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
