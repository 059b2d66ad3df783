"""A cluster for the tests: services that hold row ranges, one that routes to them, and one with the whole tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.cluster.nan_bits import with_one_nan
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.tensors import RAW
from tests.parity.items import Array, name_of
from tests.parity.messages import raw

# What may differ between the answer of a cluster and that of one machine.
_ETAGS = re.compile(
    rb'\\+"[A-Za-z0-9._-]+-[0-9]+\\+"|"(?:request_id|created|modified)": ?"[^"]*"|,"(?:replicas|ranges)":[0-9]+'
    rb'|,"ranges":\[\{"start":[0-9]+,"stop":[0-9]+,"shards"[^}]*\}(?:,\{[^}]*\})*\]'
)
"""An ETag within JSON, and within a JSON text in JSON; the id of the request, when a tensor was put; its replicas and
ranges, and how many ranges a scatter changed."""
_FIELDS = (
    "x-request-id", "server-timing", "x-gathernd-data-etag", "content-length", "etag", "date", "transfer-encoding",
)  # fmt: skip

PATIENT = "--shard-timeout", "60"
"""For routers: on a busy machine a shard may be silent for seconds. Flags that follow may say otherwise."""


def put(client: httpx.Client, name: str, table: Array) -> httpx.Response:
    query = {"dtype": name_of(table), "shape": ",".join(map(str, table.shape))}
    answer = client.put(f"/tensors/{name}", params=query, content=raw(table), headers={"content-type": RAW})
    assert answer.is_success, answer.text
    return answer


def cuts(rows: int, ranges: int) -> list[tuple[int, int]]:
    """Row ranges of uneven sizes, at most so many."""
    weights = np.arange(1, ranges + 1)
    stops = sorted(({int(rows * part) for part in np.cumsum(weights) / weights.sum()} | {rows}) - {0})
    return list(zip([0, *stops], stops, strict=False)) if rows else []


@dataclass
class Placed:
    """Tables as a map has them, put to shards as they are added."""

    shards: Sequence[Server]
    tables: dict[str, Any] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    generation: int = 0

    def add(self, name: str, table: Array, ranges: int = 4, replicas: int = 2, number: int = 1) -> None:
        """Cut a table, and put each range to `replicas` shards, the first of them by turns."""
        placed = []
        shape, table = list(table.shape), np.atleast_1d(table)
        for turn, (start, stop) in enumerate(cuts(len(table), ranges)):
            tensor = f"{name}.{number}.{start}"
            copies = []
            for copy in range(replicas):
                shard = self.shards[(turn + copy) % len(self.shards)]
                etag = put(shard.shared_client(), tensor, table[start:stop]).headers["etag"]
                copies.append({"address": f"127.0.0.1:{shard.port}", "etag": etag})
            placed.append({"start": start, "stop": stop, "tensor": f"{tensor}@1", "replicas": copies})
        versions = self.tables.setdefault(name, {"versions": []})["versions"]
        versions.append(
            {
                "number": number,
                "content_id": f"{name}-{number}",
                "dtype": name_of(table),
                "shape": shape,
                "ranges": placed,
            }
        )

    def write(self, path: Path) -> None:
        """Write the map's file, whole at once."""
        self.generation += 1
        found = {"generation": self.generation, "tables": self.tables, "aliases": self.aliases}
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(found))
        beside.rename(path)


@contextmanager
def shards(start: Start, count: int, *flags: str, ports: Sequence[int] = ()) -> Iterator[list[Server]]:
    """So many services for row ranges."""
    with ExitStack() as stack:
        yield [stack.enter_context(start("--max-features", "8", *flags)) for _ in range(count)]


def routing(start: Start, path: Path, *flags: str) -> AbstractContextManager[Server]:
    """A service that routes by the map at `path`."""
    return start("--cluster", str(path), *PATIENT, *flags)


class BothTransport(httpx.BaseTransport):
    """Sends each request to a router and to one machine, and holds the two answers equal; it gives the latter's."""

    def __init__(self, router: Server, whole: Server) -> None:
        self.router = router.client()
        self.whole = whole.client()
        for client in (self.router, self.whole):
            client.event_hooks = {"response": []}  # answers of the inference protocol have another form of errors
        self.compared = 0
        self.statuses: dict[int, int] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        headers = {name: value for name, value in request.headers.items() if name not in ("host", "user-agent")}
        found = [
            client.request(request.method, request.url.raw_path.decode(), content=request.content, headers=headers)
            for client in (self.router, self.whole)
        ]
        check_equal(request, *found)
        self.compared += 1
        self.statuses[found[1].status_code] = self.statuses.get(found[1].status_code, 0) + 1
        answer = found[1]
        sent = {
            name: value for name, value in answer.headers.items() if name not in ("content-encoding", "content-length")
        }
        return httpx.Response(answer.status_code, headers=sent, content=answer.content)

    def close(self) -> None:
        self.router.close()
        self.whole.close()


def check_equal(request: httpx.Request, routed: httpx.Response, whole: httpx.Response) -> None:
    """Both answers are the same but for request id, times and ETags, and in lookups the bits of NaNs."""
    what = (request.method, str(request.url), request.content[:2000])
    assert routed.status_code == whole.status_code, (what, routed.text[:2000], whole.text[:2000])
    pools = "lookup" in request.url.path and whole.is_success
    of_router, of_whole = (_comparable(one, with_one_nan(one) if pools else one.content) for one in (routed, whole))
    assert of_router == of_whole, (what, routed.content[:2000], whole.content[:2000])
    assert _fields(routed.headers) == _fields(whole.headers), what


def _comparable(answer: httpx.Response, content: bytes) -> bytes:
    """The body `content` without what may differ; the header of a safetensors body is padded by its length."""
    if answer.headers.get("content-type") == "application/x-safetensors":
        size = int.from_bytes(content[:8], "little")
        return _ETAGS.sub(b"", content[8 : 8 + size]).rstrip() + content[8 + size :]
    size_field = answer.headers.get("inference-header-content-length")
    if size_field is not None:
        return _ETAGS.sub(b"", content[: int(size_field)]) + content[int(size_field) :]
    return _ETAGS.sub(b"", content)


def _fields(headers: httpx.Headers) -> Mapping[str, str]:
    left = {name: value for name, value in headers.items() if name not in _FIELDS}
    left.pop("inference-header-content-length", None)  # it counts the ETags too
    return left
