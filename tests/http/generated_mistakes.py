"""Mistakes made of sound requests: each route and format in turn, with one thing changed.

Requests of `SOUND` succeed. `mistakes` draws changes of them from a seed: a member renamed, left out or added, a value
of another type, another dtype, a path or a method nearby, a name or value of the query, a header field, a damaged text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from app.api.route_table import ROUTES
from tests.http.follow_hint import Request, at
from tests.http.forms import int64, packed, tensor
from tests.http.lookups import Given, as_safetensors
from tests.http.mistakes import BINARY, INT64, ITEMS, JSON, V2_DATA, V2_INDICES, infer
from tests.http.operator_mistakes import backward, bags, elements, rows, scatter
from tests.http.provoked import body
from tests.http.tensors import NPY, RAW, SAFETENSORS, npy, save, scatter_body


def post(path: str, document: Any) -> Request:
    return Request("POST", path, json.dumps(document).encode(), JSON)


def sent(method: str, path: str, content: bytes, kind: str) -> Request:
    return Request(method, path, content, {"content-type": kind})


PAIR = {"data": tensor("float32", [2, 2], [0, 1, 2, 3]), "indices": int64([1, 2], [0, 1])}
LOOKUP = {"features": [{"tensor": "items"}]}
SOUND = (
    post("/gathernd", body(batch_dims=0, dialect="onnx-13", device="auto", output_encoding="values")),
    post("/gathernd", body({"tensor": "items"}, out_of_bounds="fill", fill_value=0)),
    post("/gathernd?explain=true", body(packed(PAIR["data"]), packed(PAIR["indices"]))),
    post("/gather", {**PAIR, "axis": 1, "dialect": "onnx-13"}),
    post("/gather_elements", {**PAIR, "axis": 0}),
    post("/scatternd", scatter(reduction="add", dialect="onnx-18")),
    post("/scatter_elements", elements(axis=0)),
    post("/gathernd/backward", backward(batch_dims=0)),
    post("/gather/backward", backward(indices=int64([2], [3, 0]), axis=0)),
    post("/lookup", {"features": [rows(), bags()], "concat": False, "output_encoding": "base64"}),
    sent("POST", "/gathernd?dialect=onnx-13&batch_dims=0", BINARY, SAFETENSORS),
    sent("POST", "/gathernd?tensor=items", save(indices=INT64), SAFETENSORS),
    sent("POST", "/scatternd?reduction=add", save(data=ITEMS, indices=INT64, updates=ITEMS[0, :1]), SAFETENSORS),
    sent("POST", "/lookup", as_safetensors([Given("items", [0, 1])]), SAFETENSORS),
    post("/v2/models/gathernd/infer", infer(V2_DATA, V2_INDICES, id="1", outputs=[{"name": "output"}])),
    post("/v2/models/gather/versions/1/infer", infer(V2_DATA, V2_INDICES, parameters={"axis": 0})),
    post("/v2/models/items/infer", infer(V2_INDICES)),
    post("/v2/models/lookup/infer", infer({**V2_INDICES, "name": "0.indices", "shape": [1]},
                                          parameters={"lookup": json.dumps(LOOKUP)})),
    sent("PUT", "/tensors/made?dtype=float32&shape=4,3&keep=1", ITEMS.tobytes(), RAW),
    sent("PUT", "/tensors/made", npy(ITEMS), NPY),
    sent("PUT", "/tensors/made", save(data=ITEMS), SAFETENSORS),
    post("/tensors/made/scatter", scatter_body([[0]], ITEMS[:1], "add")),
    sent("POST", "/tensors/made/scatter?reduction=add", save(indices=INT64[:, :1], updates=ITEMS[:1]), SAFETENSORS),
    Request("PUT", "/aliases/live", b'{"tensor": "items@1"}', JSON),
    Request("GET", "/aliases/live"),
    Request("GET", "/aliases"),
    Request("GET", "/tensors?limit=5&after=a"),
    Request("GET", "/tensors/items@1"),
    Request("GET", "/tensors/items/content?rows=0:2", b"", {"accept": RAW}),
    Request("GET", "/imports"),
    Request("GET", "/v2"),
    Request("GET", "/v2/models/gathernd"),
    Request("GET", "/v2/models/items/versions/1/config"),
    Request("GET", "/v2/models/stats"),
    Request("POST", "/v2/repository/index", b"{}", JSON),
    Request("GET", "/livez"),
    Request("GET", "/readyz"),
    Request("GET", "/errors/not_found", b"", {"accept": "text/html"}),
)  # fmt: skip

OTHER_NAMES = {
    "data": ("input", "input0", "x", "params", "Data", "values"),
    "indices": ("index", "idx", "ids", "indicies", "INDICES", "rows"),
    "dtype": ("type", "datatype", "data_type"),
    "datatype": ("dtype", "type"),
    "shape": ("dims", "size", "Shape"),
    "values": ("value", "data", "items"),
    "tensor": ("name", "table", "data"),
    "batch_dims": ("batchDims", "batch_dim", "batchdims"),
    "axis": ("dim", "axes"),
    "updates": ("update", "values"),
    "features": ("feature", "tables"),
    "inputs": ("input", "data"),
    "outputs": ("output",),
    "name": ("id", "input"),
}
"""What callers write in place of a name, by what they know from elsewhere."""
OTHER_VALUES: tuple[Any, ...] = (
    "x", "1", "", 1, 0, -1, 1.5, 10**30, True, None, [], [1], {}, {"name": "items"}, {"tensor": "items"}, "items",
    "items@latest", "items@9", "NaN",
)  # fmt: skip
OTHER_TYPES = ("float", "int", "int32", "int64", "FP32", "INT64", "float32", "f4", "string", "bool", "uint8", "float8",
               "complex64", "bfloat16", "object", "")  # fmt: skip
OTHER_PATHS = (
    "/healthz", "/health", "/ready", "/status", "/live", "/ping", "/v2/models", "/v2/health", "/v2/ready", "/v2/live",
    "/v2/index", "/v2/repository", "/v1/models", "/v2/models/gathernd/predict", "/predict", "/invocations", "/infer",
    "/gather_nd", "/gathernd/", "/api/gathernd", "/tensor/items", "/tensors/", "/tensors/items/", "/swagger",
    "/openapi", "/openapi.yaml", "/redoc", "/version", "/models", "/alias", "/alias/live", "/import", "/import/x",
    "/lookups", "/tensors/items/rows", "/tensors/items/data", "/tensors/items/versions", "/tensors/items/contents",
    "/tensors/none", "/tensors/items@latest", "/tensors/items@", "/aliases/none", "/aliases/items", "/imports/none",
    "/v2/models/none", "/v2/models/gathernd/versions/9", "/v2/models/items/versions/latest", "/metric", "/error",
    "/errors/nothing", "/doc", "/favicon.png", "/index.html", "/gathernd/explain", "/explain", "/v2/logs",
    "/v2/models/gathernd/versions", "/v2/models/items/load", "/v2/repository/models/items", "/v2/stats",
    "/v2/metadata", "/stats", "/scatter", "/elements", "/backward",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
QUERIES = ("batch_dims=0", "Axis=1", "explain=yes", "explain=1", "explain", "dtype=float32", "shape=2", "rows=1:2",
           "row=0:1", "limit=x", "limit=0", "limits=3", "after=", "keep=x", "keep=0", "nothing=1", "tensor=items",
           "output=none", "device=gpu", "reduction=sum", "pretty=true")  # fmt: skip
HEADERS = (
    ("content-type", "text/plain"), ("content-type", "application/octet-stream"), ("content-type", "text/json"),
    ("content-type", "application/x-numpy"), ("content-type", "application/safetensors"), ("content-type", "nonsense"),
    ("content-type", JSON["content-type"]), ("content-type", SAFETENSORS), ("content-type", NPY),
    ("content-encoding", "br"), ("content-encoding", "gzip"), ("content-encoding", "zstd"),
    ("accept", "text/html"), ("accept", "application/json"), ("accept", "image/png"), ("accept", NPY),
    ("x-gathernd-timeout", "1s"), ("x-gathernd-timeout", "soon"), ("x-gathernd-timeout", "-1"),
    ("if-match", "old"), ("if-match", '"old"'), ("if-none-match", "*"), ("if-none-match", "old"),
    ("idempotency-key", ""), ("idempotency-key", "é"), ("content-digest", "x"), ("content-digest", "sha-256=:AA==:"),
    ("inference-header-content-length", "3"), ("inference-header-content-length", "x"), ("range", "bytes=0-1"),
    ("host", "db.example"), ("origin", "https://example.com"), ("authorization", ""), ("authorization", "Bearer x"),
    ("authorization", "key-for-all"),
)  # fmt: skip
TEXTS = (("[", ""), ("]", ""), ("{", ""), ("}", ""), (",", ""), (",", ",,"), (":", ""), ('"', ""), ('"', "'"),
         ("]", ",]"), ("}", ",}"), ("[", "("), ("0", "00"), ("0", "NaN"), ("0", "nan"), ("0", "1_000"), ("1", "+1"),
         ("1", "1."), ("0", ".5"), ("[", "[["))  # fmt: skip


def pointers(document: Any, way: str = "") -> Iterator[str]:
    """The places of all values within a document."""
    members: Any = document.items() if isinstance(document, dict) else ()
    members = enumerate(document) if isinstance(document, list) else members
    for name, value in members:
        yield f"{way}/{name}"
        yield from pointers(value, f"{way}/{name}")


def _chosen(draw: random.Random, request: Request) -> tuple[Any, Any, Any, str]:
    """A document of its own, and the holder, name and pointer of one of its values."""
    document = deepcopy(request.document)
    pointer = draw.choice(list(pointers(document)))
    return (document, *at(document, pointer), pointer)


def rename(draw: random.Random, request: Request) -> Request:
    """Another name for a member: of the right one's letters, or what others call it."""
    document, holder, name, _ = _chosen(draw, request)
    if not isinstance(holder, dict):
        return request
    wrong = draw.choice((*OTHER_NAMES.get(name, ()), shortened(draw, name), name.upper(), name + "s"))
    renamed = {wrong if key == name else key: value for key, value in holder.items()}
    holder.clear()
    holder.update(renamed)
    return request.with_document(document)


def leave_out(draw: random.Random, request: Request) -> Request:
    document, holder, name, _ = _chosen(draw, request)
    del holder[name]
    return request.with_document(document)


def add(draw: random.Random, request: Request) -> Request:
    """A member that another object or request has, or none."""
    document, holder, _, _ = _chosen(draw, request)
    if isinstance(holder, dict):
        holder[draw.choice((*OTHER_NAMES, "base64", "dialect", "input0", "nothing"))] = draw.choice(OTHER_VALUES)
    return request.with_document(document)


def change_value(draw: random.Random, request: Request) -> Request:
    document, holder, name, _ = _chosen(draw, request)
    given = holder[name]
    holder[name] = draw.choice((*OTHER_VALUES, str(given), [given]))
    return request.with_document(document)


def change_type(draw: random.Random, request: Request) -> Request:
    document = deepcopy(request.document)
    found = [pointer for pointer in pointers(document) if pointer.endswith("type")]
    if not found:
        return request
    holder, name = at(document, draw.choice(found))
    holder[name] = draw.choice(OTHER_TYPES)
    return request.with_document(document)


def damage(draw: random.Random, request: Request) -> Request:
    """Another byte or two in the text."""
    before, after = draw.choice(TEXTS)
    places = [place for place in range(len(request.body)) if request.body.startswith(before.encode(), place)]
    if not places:
        return request
    place = draw.choice(places)
    return replace(request, body=request.body[:place] + after.encode() + request.body[place + len(before) :])


def shortened(draw: random.Random, text: str, first: int = 0) -> str:
    """A text without one of its characters."""
    place = draw.randrange(first, len(text))
    return text[:place] + text[place + 1 :]


def other_path(draw: random.Random, request: Request) -> Request:
    """A path that other services have, or one nearby."""
    if draw.random() < 0.6:
        method = draw.choice(("GET", "GET", "POST", "PUT", "DELETE"))
        return Request(method, draw.choice(OTHER_PATHS), b"", request.headers)
    path, mark, query = request.path.partition("?")
    wrong = draw.choice((shortened(draw, path, 1), path.upper(), path + "/", path + "s"))
    return replace(request, path=wrong + mark + query)


def other_method(draw: random.Random, request: Request) -> Request:
    return replace(request, method=draw.choice(METHODS))


def other_route(draw: random.Random, request: Request) -> Request:
    """Any method for any route."""
    names = {"name": "items", "alias": "live", "version": "1", "id": "none", "code": "internal", "asset": "docs.css"}
    return Request(draw.choice(METHODS), draw.choice(ROUTES).template.format(**names, region="x"))


def other_query(draw: random.Random, request: Request) -> Request:
    """Another name or value of a field of the query, or one field more."""
    path, _, query = request.path.partition("?")
    fields = query.split("&") if query else []
    if fields and draw.random() < 0.6:
        number = draw.randrange(len(fields))
        name, _, value = fields[number].partition("=")
        wrong = (f"{shortened(draw, name)}={value}", f"{name.upper()}={value}", f"{name}={value}x", f"{name}=",
                 f"{name}=-1", f"{name}={value}&{name}={value}")  # fmt: skip
        fields[number] = draw.choice(wrong)
    else:
        fields.append(draw.choice(QUERIES))
    return replace(request, path=path + "?" + "&".join(fields))


def other_header(draw: random.Random, request: Request) -> Request:
    return request.with_header(*draw.choice(HEADERS))


IN_JSON = (rename, leave_out, add, change_value, change_type, damage)
ANYWHERE = (other_path, other_method, other_route, other_query, other_header)


def mistakes(seed: int, count: int) -> Iterator[tuple[str, Request]]:
    """Changed requests, each with the name of its change."""
    draw = random.Random(seed)
    while count:
        request = draw.choice(SOUND)
        changes: tuple[Callable[[random.Random, Request], Request], ...] = ANYWHERE
        if request.body.startswith(b"{") and draw.random() < 0.75:
            changes = IN_JSON
        change = draw.choice(changes)
        try:
            changed = change(draw, request)
        except IndexError:  # no value to choose
            continue
        if changed != request:
            count -= 1
            yield change.__name__, changed
