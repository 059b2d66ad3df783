"""What is asked of a shard beside its rows: to take a range, give it whole, list what it has and remove it.

These are the service's own routes of tensors, asked with blocking sockets, on threads. A range is the tensor
`RangeKey.tensor` at the shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLContext
from typing import Any, Final

import orjson

from app.api.route_table import path_of
from app.cluster.coordinator.messages import RangeKey
from app.cluster.shard.held_ranges import StoredRange
from app.tensors.buffer_type import Buffer

RAW: Final = "application/octet-stream"
CHUNK_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})\.([0-9]{1,19})-([0-9]{1,19})")
_MAX_ANSWER: Final = 1 << 24


class ShardFailed(Exception):
    """A shard did not do what it was asked; `code` is the error's code where it answered with one, else ""."""

    def __init__(self, detail: str, code: str = "") -> None:
        super().__init__(detail)
        self.code = code


def parse_name(name: str) -> RangeKey | None:
    """The range that is held under a tensor's name, None where it is no range."""
    match = _NAME.fullmatch(name)
    return None if match is None else RangeKey(match[1], int(match[2]), int(match[3]))


class ShardClient:
    """One shard by its address, asked with `key`, over TLS where `tls` is given.

    Each call has a connection of its own; all raise ShardFailed.
    """

    def __init__(self, address: str, key: str | None, timeout: float = 30.0, tls: SSLContext | None = None) -> None:
        self.address = address
        self.failure = ""
        """Why `readiness` was None last."""
        self._tls = tls
        self._fields = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._timeout = timeout

    def readiness(self) -> bool | None:
        """Return True if the shard is ready, False if it answers that it is not, None if it does not answer."""
        try:
            with _Asked(self, "GET", path_of("readyz")) as answer:
                return answer.status == 200
        except ShardFailed as failure:
            self.failure = str(failure)
            return None

    def stored(self) -> list[StoredRange]:
        """The ranges that it has whole."""
        found, after = [], ""
        while True:
            with _Asked(self, "GET", f"{path_of('listTensors')}?limit=1000{after}") as answer:
                page = _json(answer, 200)
            for one in page["tensors"]:
                key = parse_name(one["name"])
                if key is not None and not one.get("damaged"):
                    found.append(StoredRange(key, one["bytes"], one["sha256"]))
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def remove(self, key: RangeKey) -> None:
        """Remove a range, if it is there."""
        with _Asked(self, "DELETE", path_of("deleteTensor", name=key.tensor)) as answer:
            if answer.status != 404:
                _json(answer, 204)

    def copy_from(self, source: ShardClient, key: RangeKey) -> str:
        """Take a range from another shard: the digest of its rows, which is that of the content taken."""
        with _Asked(source, "GET", path_of("tensorContent", name=key.tensor), {"Accept": RAW}) as answer:
            if answer.status != 200:
                _json(answer, 200)
            dtype, shape = answer.headers["X-Gathernd-Dtype"], answer.headers["X-Gathernd-Shape"]
            length = answer.headers["Content-Length"]
            if length is None or dtype is None or shape is None:
                raise ShardFailed(f"{source.address} does not say what {key.tensor} is")
            writer = RangeWriter(self, key, dtype, shape, int(length))
            try:
                left = int(length)
                for piece in _pieces(answer):
                    writer.write(piece)
                    left -= len(piece)
                if left:  # which the shard here would wait for
                    raise ShardFailed(f"{source.address} broke off {left} of {length} bytes before the end")
                return writer.finish()
            finally:
                writer.close()

    def connect(self) -> HTTPConnection:
        """A connection, which is made when it is used first."""
        host, _, port = self.address.rpartition(":")
        if self._tls is not None:
            return HTTPSConnection(host.strip("[]"), int(port), timeout=self._timeout, context=self._tls)
        return HTTPConnection(host.strip("[]"), int(port), timeout=self._timeout)

    @property
    def fields(self) -> Mapping[str, str]:
        """Header fields of every request."""
        return self._fields


class RangeWriter:
    """The rows of one range on their way to one shard. All methods block, and raise ShardFailed.

    The shard has the range when `finish` returns; before that, with `close`, nothing stays of it.
    """

    def __init__(self, shard: ShardClient, key: RangeKey, dtype: str, shape: str, size: int) -> None:
        """`shape` as the query has it, sizes with commas; `size` in bytes."""
        self._shard = shard
        self._connection = shard.connect()
        self._name = key.tensor
        try:
            self._connection.putrequest(
                "PUT", f"{path_of('putTensor', name=self._name)}?dtype={dtype}&shape={shape}&keep=1"
            )
            for name, value in {**shard.fields, "Content-Type": RAW, "Content-Length": str(size)}.items():
                self._connection.putheader(name, value)
            self._connection.endheaders()
        except (OSError, HTTPException) as error:
            self.close()
            raise ShardFailed(f"{shard.address}: {error}") from None

    def write(self, piece: Buffer) -> None:
        """The next rows."""
        try:
            self._connection.send(piece)
        except OSError as error:
            # It may have refused, and said why, before it had read the whole.
            try:
                self.finish()
            except ShardFailed as refusal:
                if refusal.code:
                    raise
            raise ShardFailed(f"{self._shard.address}: {error}") from None

    def finish(self) -> str:
        """All rows are written: the digest of what the shard has now."""
        try:
            answer = self._connection.getresponse()
            metadata = _json(answer, 200, 201)
        except (OSError, HTTPException) as error:
            raise ShardFailed(f"{self._shard.address}: {error}") from None
        digest: str = metadata["sha256"]
        return digest

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Asked:
    """One request and its answer, whose connection is closed afterwards."""

    def __init__(self, shard: ShardClient, method: str, path: str, more: Mapping[str, str] | None = None) -> None:
        self._address = shard.address
        self._connection = shard.connect()
        self._request = method, path, {**shard.fields, **(more or {})}

    def __enter__(self) -> HTTPResponse:
        method, path, fields = self._request
        try:
            self._connection.request(method, path, headers=fields)
            return self._connection.getresponse()
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise ShardFailed(f"{self._address}: {error}") from None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._connection.close()
        if isinstance(error, OSError | HTTPException):
            raise ShardFailed(f"{self._address}: {error}") from None


def _pieces(answer: HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read(CHUNK_BYTES):
        yield piece


def _json(answer: HTTPResponse, *wanted: int) -> Any:
    """The JSON of an answer with a status that is wanted; else the error that it says."""
    text = answer.read(_MAX_ANSWER)
    try:
        found = orjson.loads(text) if text else {}
    except ValueError:
        found = None
    if answer.status in wanted:
        if not isinstance(found, dict):
            raise ShardFailed(f"status {answer.status}, and no JSON object: {text[:300].decode(errors='replace')}")
        return found
    code = found.get("code", "") if isinstance(found, dict) else ""
    raise ShardFailed(f"status {answer.status}: {text[:300].decode(errors='replace')}", code)
