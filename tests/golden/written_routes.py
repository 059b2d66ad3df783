"""Requests of the golden corpus that are written out: paths, header fields, uploads, aliases and the protocol's routes.

Each is refused or changes nothing, so that the corpus's tensors stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.golden.source import safetensors
from tests.golden.written import MATRIX, NPY, PAIRS, RAW, SAFETENSORS, TEXT, Written, infer, post

GATHER = TEXT.encode()
SAFE = ("/", "/docs", "/docs/swagger-ui.css", "/errors", "/errors/internal", "/openapi.json", "/livez", "/readyz",
        "/metrics", "/tensors", "/tensors/x", "/tensors/x/content", "/tensors/x/scatter", "/aliases/live", "/gathernd",
        "/gather", "/gather_elements", "/v2/health/live", "/v2/models/gathernd/infer")  # fmt: skip
NOWHERE = (
    "/gathernd/", "/gather/", "/readyz/", "//gathernd", "/GatherND", "/gathernd/x", "/docs/", "/favicon.ico/",
    "/tensors%2Fx", "/tensors%2fx%2Fcontent", "/gathernd%2F", "/%2Fgathernd", "/errors%2Finternal", "/docs%2Fx",
    "/v2%2Fhealth%2Flive", "/tensors/x%2Fcontent/y", "/tensors/x/content%2Fy", "/%2A", "/v2%2Fmodels/gathernd/infer",
    "/tensors/a/b/c", "/tensors/a/contents", "/tensors/a/content/x", "/tensors/a/../b", "/tensors//content/",
    "/v2/nothing", "/v2/", "/v2x", "/v3", "/v2/models/gathernd/nothing", "/v2/models/gathernd/versions/1/nothing",
)  # fmt: skip


def asked(method: str, target: str, body: bytes = b"", **fields: str) -> Written:
    """A request with any method; fields are given with underscores."""
    return post(target, body, **fields)._replace(method=method)


def paths() -> Iterator[Written]:
    """Each path by methods that it has not, paths that are none, and paths in other spellings."""
    for path in SAFE:
        yield asked("OPTIONS", path)
        yield asked("PATCH", path)
    for path in NOWHERE:
        yield asked("GET", path)
        yield post(path, GATHER)
    for path in ("/tensors/a%2Fb", "/tensors/a%2Fcontent", "/tensors/%2F", "/tensors/a%2Fb/content",
                 "/errors/internal%2F", "/v2/models%2Fgathernd", "/v2/models/gathernd%2Fready",
                 "/v2/models/gathernd%2Finfer", "/%6civez", "/v2/models/g%61thernd"):  # fmt: skip
        yield asked("GET", path)
    for path in ("/%67athernd", "/v2/models/gathernd%2Finfer", "/v2/models/gathernd%2Fversions%2F1/infer"):
        yield post(path, GATHER)
    for method, path in (("POST", "/v2"), ("DELETE", "/v2/models/gathernd"), ("PUT", "/v2/models/nothing/infer"),
                         ("GET", "/v2/repository/index"), ("POST", "/v2/cudasharedmemory/region/x/register"),
                         ("POST", "/v2/logging"), ("GET", "/v2/models/gathernd/versions/3/ready"),
                         ("GET", "/v2/models/stats/ready"), ("POST", "/v2/repository/models/gather/load"),
                         ("POST", "/v2/repository/models/nothing/load"), ("POST", "/aliases"),
                         ("POST", "/aliases/live")):  # fmt: skip
        yield asked(method, path)
    for body in (b"{", b"[]", b'{"ready": 1}', b"x" * 70_000, b"", b"{}", b'{"ready": true}', b'{"ready": false}'):
        yield post("/v2/repository/index", body)


def fields() -> Iterator[Written]:
    """Header fields: media types, hosts, origins, and conditions that are no list of ETags."""
    for kind in ("", "application/json", "Application/JSON", "application/json; charset=utf-8",
                 'application/json;charset="UTF-8"', "application/json ; charset=utf8", "application/json; odata=x",
                 "text/plain", "application/xml", "multipart/form-data; boundary=x", RAW, "json",
                 "application/json; charset=utf-16", "application/jsonp", "a" * 999,
                 "application/x-www-form-urlencoded", "application/x-www-form-urlencoded; charset=utf-8"):  # fmt: skip
        for path in ("/gathernd", "/gather_elements"):
            yield post(path, GATHER, content_type=kind)
    arrays = {"data": MATRIX, "indices": PAIRS}
    for accept in (
        "*/*", "application/*", "", "text/html", SAFETENSORS, "Application/X-Safetensors; Q=0.5, text/html",
        "application/json", "application/json;q=0.9, */*;q=0.1", f"{SAFETENSORS}, application/json;q=0.5",
        f"application/json, {SAFETENSORS}", f"{SAFETENSORS};q=0, */*", "application/json;q=0, */*",
        f"application/json;q=zero, {SAFETENSORS};q=0.1",
    ):  # fmt: skip
        yield post("/gathernd", safetensors(arrays), content_type=SAFETENSORS, accept=accept)
        yield post("/gathernd", GATHER, accept=accept)
    for host in ("localhost:8080", "example.com", "", "a b", "[::1", "127.0.0.1, example.com"):
        yield post("/gathernd", GATHER, host=host)
        yield asked("GET", "/v2/models/gathernd", host=host)
    for origin in ("http://localhost", "http://127.0.0.1:3000", "https://example.com", "null", "x"):
        yield post("/gathernd", GATHER, origin=origin)
        yield post("/v2/models/gathernd/infer", infer(), origin=origin)
    for value in ("", ",,,", "junk", '"a', '"a" "b"', '"a"x', "**", 'w/"a"', 'W/ "a"', '"a b"'):
        for field in ("if_match", "if_none_match"):
            yield asked("GET", "/tensors/g_row/content", b"", **{field: value})
            yield asked("DELETE", "/tensors/g_row", b"", **{field: value})
    for digest in ("junk", "sha-256=AAAA", "sha-256=:AAAA:", "sha-256=:???:", ""):
        yield asked("PUT", "/tensors/g_row?dtype=int8&shape=3", b"\1\2\3", content_type=RAW, content_digest=digest)
    for key in ("", "a b", "x" * 257, "\xe9"):
        yield post("/tensors/g_row/scatter", GATHER, idempotency_key=key)


def files() -> Iterator[Written]:
    """Raw uploads whose query is wrong, and rows, pages and options that are none."""
    for query in (
        "", "dtype=int8", "shape=3", "dtype=int9&shape=3", "dtype=INT8&shape=3", "dtype=int8&shape=3,",
        "dtype=int8&shape=-3", "dtype=int8&shape=3.0", "dtype=int8&shape=%D9%A3", f"dtype=int8&shape={'9' * 41}",
        f"dtype=int8&shape={'9' * 40}", f"dtype=int8&shape={','.join(['1'] * 33)}", "dtype=int8&shape=4",
        "dtype=int8&shape=2", "dtype=int8&shape=", "dtype=int16&shape=3", "dtype=int8&shape=3&shape=3",
        "dtype=int8&shape=3&more=1", "dtype=bool&shape=3", "dtype=string&shape=3", "dtype=int8&shape=3&lock=yes",
    ):  # fmt: skip
        yield asked("PUT", f"/tensors/hostile?{query}", b"\1\2\3", content_type=RAW)
    yield asked("PUT", "/tensors/hostile", b"junk", content_encoding="gzip")
    for coding in ("br", "gzip, gzip", "gzip"):
        yield asked("PUT", "/tensors/hostile", b"", content_type=NPY, content_encoding=coding)
    for rows in ("3:2", "0:7", "7:7", "0:99999999999999999999", "", "1", "a:b", "-1:2", "1:2:3", "1:", ":2", "%201:2",
                 "0x1:2", "%D9%A1:%D9%A2", "0:0", "5:5", "0:5", "2:3"):  # fmt: skip
        yield asked("GET", f"/tensors/g_row/content?rows={rows}")
    yield asked("GET", "/tensors/g_one/content?rows=0:0")
    for limit in ("0", "1001", "-1", "x", "", "1.0", "1e2"):
        yield asked("GET", f"/tensors?limit={limit}")
    for query in ("limit=0", "page=1"):
        yield asked("GET", f"/aliases?{query}")


def aliases() -> Iterator[Written]:
    """Aliases whose body or name is wrong."""
    names: tuple[Any, ...] = (
        "null", "7", "1e999", '["g_row@1"]', '"g_row"', '""', '"g_row@0"', '"g_row@1\\n"', '"\\ud800@1"', '"other"',
        '"g_row@3"', '"g_rwo@1"', '"other@1"', '"g_row@1", "version": 1', '"g_row@1", "tensor": "g_row@1"',
    )  # fmt: skip
    for body in (b"", b"live", b'{"tensor": "g_row@1"} x', b"[]", b'"g_row@1"', b"null", b"{}", b" " * (1 << 15),
                 *(f'{{"tensor": {name}}}'.encode() for name in names)):  # fmt: skip
        yield asked("PUT", "/aliases/live", body)
    good = b'{"tensor": "g_row@1"}'
    for name in ("gathernd", "lookup", "stats", "live@1", ".live", "a%20b", "x" * 129, "g_row", "live?x=1"):
        yield asked("PUT", f"/aliases/{name}", good)
    for field, value in (("content_type", "text/plain"), ("content_encoding", "br"), ("if_match", "*")):
        yield asked("PUT", "/aliases/live", good, **{field: value})
    for method in ("GET", "DELETE"):
        yield asked(method, "/aliases/g_row")


READ = (
    "/livez", "/readyz", "/v2/models/gather", "/errors/none", "/tensors", "/tensors/g_row", "/tensors/g_none",
    "/tensors/g_row@1", "/tensors/g_row@2", "/tensors/g_row/content", "/tensors/g_row/content?rows=1:3",
    "/tensors/g_complex64/content", "/aliases", "/aliases/none", "/imports", "/imports/none", "/tensors?limit=2",
    "/tensors?after=g_o&limit=1", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/systemsharedmemory/status",
    *(f"/v2/models/{model}{what}" for model in ("gathernd", "gather_elements", "scatternd", "lookup", "g_row",
                                                "g_complex64", "none") for what in ("", "/config", "/ready")),
)  # fmt: skip


def reads() -> Iterator[Written]:
    """What is read of the service, of its tensors and of its models."""
    for target in READ:
        yield asked("GET", target)
    for accept in (RAW, NPY, SAFETENSORS, "text/html"):
        yield asked("GET", "/tensors/g_row/content", accept=accept)


WRITTEN_ROUTES = {
    "paths": paths(),
    "fields_of_headers": fields(),
    "files": files(),
    "aliases": aliases(),
    "reads": reads(),
}
