"""Typical mistakes: a request each, the error that it gets, and what its hint must name.

The tensor `items` is float32 of shape [4, 3], `other` is int8 of shape [2].
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.http.forms import int64, packed, tensor
from tests.http.provoked import body, without
from tests.http.tensors import NPY, RAW, SAFETENSORS, npy, save, scatter_body

MAX_JSON = 4096
"""Bytes of JSON that the service of these tests takes."""
JSON = {"content-type": "application/json"}
ITEMS = np.arange(12, dtype=np.float32).reshape(4, 3)
INT64 = np.array([[0, 0]], np.int64)
BINARY = save(data=ITEMS, indices=INT64)
V2 = "/v2/models/gathernd/infer"


KEYS = {"gather": "key-to-gather", "tensors": "key-for-all", "change": "key-to-change"}
"""The service's keys, by the scope that a hint asks for; the last has `tensors` alone."""


@dataclass(frozen=True)
class Request:
    """A request; header fields are in lower case."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Mistake:
    """`request` gets the error `code` at `pointer`, None for an error without a place; its hint has `mend` in it."""

    name: str
    request: Request
    code: str
    pointer: str | None
    mend: str


def gather(name: str, sent: Any, code: str, pointer: str | None, mend: str, path: str = "/gathernd") -> Mistake:
    """A mistake in the JSON of a gather, given as text or as an object."""
    content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    return Mistake(name, Request("POST", path, content, JSON), code, pointer, mend)


def binary(name: str, path: str, sent: bytes, code: str, pointer: str | None, mend: str) -> Mistake:
    """A mistake in the native binary format."""
    return Mistake(name, Request("POST", path, sent, {"content-type": SAFETENSORS}), code, pointer, mend)


def upload(name: str, path: str, sent: bytes, code: str, pointer: str | None, mend: str, **headers: str) -> Mistake:
    """A mistake in a PUT of a tensor; header fields are given with underscores."""
    fields = {field.replace("_", "-"): value for field, value in headers.items()}
    return Mistake(name, Request("PUT", path, sent, fields), code, pointer, mend)


def one(name: str = "data", **members: Any) -> dict[str, Any]:
    """A gather of item 0 whose tensor `name` has these members."""
    given = {"data": tensor("float32", [2], [1, 2]), "indices": int64([1, 1], [0])}
    return {**given, name: {**given[name], **members}}


def infer(*inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs), **more}


def given(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


V2_DATA = given("data", "FP32", [2], [1, 2])
V2_INDICES = given("indices", "INT64", [1, 1], [0])
TEXT = json.dumps(body())
MALFORMED = [
    gather("a bare NaN", TEXT.replace("[0, 1, 2, 3]", "[NaN, 1, 2, 3]").encode(), "malformed_request", None, '"NaN"'),
    gather("infinity as Python prints it", TEXT.replace("[0, 1, 2, 3]", "[-inf, 1, 2, 3]").encode(),
           "malformed_request", None, '"-Infinity"'),
    gather("a comma at the end of a list", TEXT.replace("3]}", "3,]}").encode(), "malformed_request", None, "comma"),
    gather("single quotes", TEXT.replace('"', "'").encode(), "malformed_request", None, "double quotes"),
    gather("a name without quotes", TEXT.replace('"data"', "data").encode(), "malformed_request", None, '"data"'),
    gather("a comment", ("// rows\n" + TEXT).encode(), "malformed_request", None, "comment"),
    gather("a byte order mark", b"\xef\xbb\xbf" + TEXT.encode(), "malformed_request", None, "byte order mark"),
    gather("UTF-16", TEXT.encode("utf-16"), "malformed_request", None, "UTF-8"),
    gather("cut short", TEXT[:-2].encode(), "malformed_request", None, "whole body"),
    gather("no body", b"", "malformed_request", None, "empty"),
    gather("a point without a digit", TEXT.replace("[0, 1, 2, 3]", "[.5, 1, 2, 3]").encode(),
           "malformed_request", None, "0.5"),
    gather("no comma between members", TEXT.replace("}, ", "} ", 1).encode(), "malformed_request", None, "comma"),
    gather("a key given twice", TEXT.replace("{", '{"data": 1, ', 1).encode(), "malformed_request", None, "'data'"),
]  # fmt: skip
FIELDS = [
    gather("batchdims", body(batchdims=0), "invalid_field", "/batchdims", "batch_dims"),
    gather("axis of another operator", body(axis=0), "invalid_field", "/axis", "axis"),
    gather("no indices", without("indices"), "invalid_field", "/indices", "indices"),
    gather("no dtype", {**one(), "data": {"shape": [2], "values": [1, 2]}}, "invalid_field", "/data/dtype", "float32"),
    gather("datatype for dtype", {**one(), "data": {"datatype": "int8", "shape": [1], "values": [1]}}, "invalid_field",
           "/data/datatype", "'dtype'"),
    gather("values and base64", one(base64="AAAAAA=="), "invalid_field", "/data", "base64"),
    gather("the dialect of ONNX in capitals", body(dialect="ONNX-13"), "invalid_field", "/dialect", "onnx-13"),
    gather("batch_dims in quotes", body(batch_dims="0"), "invalid_field", "/batch_dims", "0"),
    gather("a size in quotes", one(shape=["2"]), "invalid_field", "/data/shape/0", "2"),
    gather("a name in place of a tensor", {**one(), "data": "other"}, "invalid_field", "/data", '"tensor": "other"'),
    gather("a field in the query", body(), "invalid_field", "/query/batch_dims", "body", "/gathernd?batch_dims=0"),
]  # fmt: skip
TYPES = [
    *(
        gather(f"{name} for a type", one(dtype=name), "unsupported_dtype", "/data/dtype", mend)
        for name, mend in (("float", "float32"), ("double", "float64"), ("FP32", "float32"), ("Int64", "int64"),
                           ("torch.float16", "float16"), ("<f4", "float32"), ("f32", "float32"))
    ),
    gather("int32 indices", one("indices", dtype="int32"), "unsupported_dtype", "/indices/dtype", "int64"),
    gather("a number too large for its type", one(dtype="uint8", values=[1, 300]), "value_not_representable",
           "/data/values/1", "uint16"),
    gather("a fraction in an integer type", one(dtype="int8", values=[1, 1.5]), "value_not_representable",
           "/data/values/1", "float64"),
    gather("a number in quotes", one(values=[1, "2.5"]), "value_not_representable", "/data/values/1", "2.5"),
    gather("nan as a string of another form", one(values=[1, "nan"]), "value_not_representable", "/data/values/1",
           "NaN"),
    gather("null for a missing value", one(values=[1, None]), "value_not_representable", "/data/values/1", "NaN"),
    gather("1 for true", one(dtype="bool", values=[True, 1]), "value_not_representable", "/data/values/1", "true"),
    gather("a number among strings", one(dtype="string", values=["a", 7]), "value_not_representable",
           "/data/values/1", "quotes"),
]  # fmt: skip
SHAPES = [
    gather("too few values", one(shape=[3]), "element_count_mismatch", "/data/values", "2 came"),
    gather("a ragged list", one(shape=[2, 2], values=[[1, 2], [3]]), "element_count_mismatch", "/data/values",
           "/data/values/1"),
    gather("a ragged list without a shape", {**one(), "data": {"dtype": "int8", "values": [[[1, 2]], [[3, 4, 5]]]}},
           "element_count_mismatch", "/data/values", "/data/values/1/0"),
    gather("a scalar", one(shape=[], values=[1]), "rank_too_small", "/data/shape", "[1]"),
    gather("batch_dims of the rank", body(batch_dims=2), "batch_dims_out_of_range", "/batch_dims", "0 to 1"),
    gather("batches that differ", body(indices=int64([3, 1], [0, 0, 0]), batch_dims=1), "batch_shape_mismatch",
           "/indices/shape", "2"),
    gather("tuples without a component", body(indices=int64([1, 0], [])), "index_depth_out_of_range",
           "/indices/shape", "1"),
    gather("an index out of range", body(indices=int64([1, 2], [0, 2])), "index_out_of_bounds", "/indices/values/1",
           "-2 to 1"),
    gather("an axis that data has not", body(indices=int64([1], [0]), axis=2), "axis_out_of_range", "/axis", "1",
           "/gather"),
    gather("batch_dims beside an axis of ONNX", body(indices=int64([2, 1], [0, 0]), axis=1, batch_dims=1),
           "invalid_field", "/batch_dims", "openvino-8", "/gather"),
    gather("Gather-8 without an axis", body(indices=int64([1], [0]), dialect="openvino-8"), "invalid_field", "/axis",
           "axis", "/gather"),
    gather("batch_dims beyond the axis",
           body(indices=int64([2, 1], [0, 0]), axis=0, batch_dims=1, dialect="openvino-8"),
           "batch_dims_out_of_range", "/batch_dims", "0 to 0", "/gather"),
    gather("indices of another rank", body(indices=int64([1], [0])), "rank_mismatch", "/indices/shape", "2",
           "/gather_elements"),
    gather("indices longer than data", body(indices=int64([3, 1], [0] * 3), axis=1), "indices_shape_mismatch",
           "/indices/shape", "2", "/gather_elements"),
    gather("too few in GatherElements-6", body(indices=int64([1, 1], [0]), axis=1, dialect="openvino-6"),
           "indices_shape_mismatch", "/indices/shape", "2", "/gather_elements"),
    gather("bytes of another type", {**one(), "data": {**packed(tensor("int8", [3], [1, 2, 3])), "shape": [2]}},
           "element_count_mismatch", "/data/base64", "3 items"),
    gather("a GPU where there is none", body(device="gpu"), "device_unavailable", "/device", "auto"),
]  # fmt: skip
NAMES = [
    gather("a tensor misspelt", {"data": {"tensor": "itmes"}, "indices": int64([1, 1], [0])}, "tensor_not_found",
           "/data/tensor", "items"),
    Mistake("a tensor misspelt in a path", Request("GET", "/tensors/Items"), "tensor_not_found", "/name", "items"),
    gather("a version that is not kept", {"data": {"tensor": "items@9"}, "indices": int64([1, 1], [0])},
           "tensor_not_found", "/data/tensor", "items@"),
    gather("a version without its number", {"data": {"tensor": "items@"}, "indices": int64([1, 1], [0])},
           "invalid_field", "/data/tensor", "'items'"),
    Mistake("a version that is not kept, in a path", Request("GET", "/tensors/items@9"), "tensor_not_found", "/name",
            "items@"),
    Mistake("a version that is none, in a path", Request("GET", "/tensors/items@v1"), "invalid_field", "/name",
            "items"),
    Mistake("an alias that names no version", Request("PUT", "/aliases/live", b'{"tensor": "items"}', JSON),
            "invalid_field", "/tensor", "items@"),
    Mistake("an alias under the name of a tensor", Request("PUT", "/aliases/items", b'{"tensor": "items@1"}', JSON),
            "name_conflict", "/name", "another name"),
    Mistake("a model misspelt", Request("GET", "/v2/models/gather_nd"), "model_not_found", None, "gathernd"),
    Mistake("a version that no model has", Request("GET", "/v2/models/gathernd/versions/2"), "model_not_found", None,
            "1"),
    gather("a path with an underscore", body(), "not_found", None, "/gathernd", "/gather_nd"),
    gather("a path in capitals", body(), "not_found", None, "/gathernd", "/GatherND"),
    gather("a slash at the end", body(), "not_found", None, "/gathernd", "/gathernd/"),
    Mistake("a path in the singular", Request("GET", "/tensor/items"), "not_found", None, "/tensors/items"),
    Mistake("GET for a gather", Request("GET", "/gathernd", TEXT.encode(), JSON), "method_not_allowed", None, "POST"),
    Mistake("POST for the list", Request("POST", "/tensors"), "method_not_allowed", None, "GET"),
]  # fmt: skip
HEADERS = [
    Mistake("curl -d alone", Request("POST", "/gathernd", TEXT.encode(),
            {"content-type": "application/x-www-form-urlencoded"}), "unsupported_media_type", None, "application/json"),
    Mistake("brotli", Request("POST", "/gathernd", TEXT.encode(), {**JSON, "content-encoding": "br"}),
            "unsupported_media_type", None, "gzip"),
    Mistake("safetensors that is called JSON", Request("POST", "/gathernd", BINARY, JSON), "malformed_request", None,
            "application/x-safetensors"),
    Mistake("a timeout with its unit", Request("POST", "/gathernd", TEXT.encode(),
            {**JSON, "x-gathernd-timeout": "500ms"}), "invalid_field", "/x-gathernd-timeout", "0.5"),
    Mistake("a page of another site", Request("POST", "/gathernd", TEXT.encode(),
            {**JSON, "origin": "https://example.com"}), "forbidden", None, "GATHERND_CORS_ORIGINS"),
    Mistake("another name of the host", Request("POST", "/gathernd", TEXT.encode(), {**JSON, "host": "db.example"}),
            "forbidden", None, "GATHERND_ALLOWED_HOSTS"),
    Mistake("no key", Request("POST", "/gathernd", TEXT.encode(), {**JSON, "authorization": ""}), "unauthorized", None,
            "Authorization"),
    Mistake("an unknown key", Request("POST", "/gathernd", TEXT.encode(), {**JSON, "authorization": "Bearer x"}),
            "unauthorized", None, "gathernd keys add"),
    Mistake("a body over the limit", Request("POST", "/gathernd", TEXT.encode().ljust(MAX_JSON + 1), JSON),
            "payload_too_large", None, "GATHERND_MAX_JSON_BYTES"),
]  # fmt: skip
BINARIES = [
    binary("a tensor misnamed", "/gathernd", save(data=ITEMS, indicies=INT64), "invalid_field", "/indicies", "indices"),
    binary("a dialect misspelt in the query", "/gathernd?dialect=onnx13", BINARY, "invalid_field", "/query/dialect",
           "onnx-13"),
    binary("batch_dims of the rank in the query", "/gathernd?batch_dims=2", BINARY, "batch_dims_out_of_range",
           "/query/batch_dims", "0 to 1"),
    binary("a field of the query misspelt", "/gathernd?batchdims=0", BINARY, "invalid_field", "/query/batchdims",
           "batch_dims"),
    binary("the data twice", "/gathernd?tensor=items", BINARY, "invalid_field", "/query/tensor", "query"),
]  # fmt: skip
TENSORS = [
    upload("a name with a space", "/tensors/my items", npy(ITEMS), "invalid_field", "/name", "my_items"),
    upload("a reserved name", "/tensors/gather", npy(ITEMS), "invalid_field", "/name", "gather_1"),
    upload("a type of C in the query", "/tensors/a1?dtype=float&shape=4,3", ITEMS.tobytes(), "unsupported_dtype",
           "/query/dtype", "float32", content_type=RAW),
    upload("a shape that does not fit", "/tensors/a2?dtype=float32&shape=5,3", ITEMS.tobytes(),
           "element_count_mismatch", "/body", "12 items", content_type=RAW),
    upload("a media type of NumPy that is none", "/tensors/a3", npy(ITEMS), "unsupported_media_type", None, NPY,
           content_type="application/x-numpy"),
    upload("a type for npy, which has its own", "/tensors/a4?dtype=float32", npy(ITEMS), "invalid_field",
           "/query/dtype", "'dtype'", content_type=NPY),
    upload("a number in the name", "/tensors/other@2", npy(np.zeros(2, np.int8)), "invalid_field", "/name", "'other'"),
    upload("an ETag of before", "/tensors/other", npy(np.zeros(2, np.int8)), "precondition_failed", None, "If-Match",
           if_match='"old"'),
    upload("only if there is none", "/tensors/other", npy(np.zeros(2, np.int8)), "precondition_failed", None,
           "If-Match", if_none_match="*"),
    upload("If-Match for a new name", "/tensors/a5", npy(ITEMS), "precondition_failed", None, "If-Match",
           if_match='"old"'),
    upload("a key that may not change tensors", "/tensors/a6", npy(ITEMS), "forbidden", None, "tensors",
           authorization=f"Bearer {KEYS['gather']}"),
    Mistake("rows beyond the end", Request("GET", "/tensors/items/content?rows=2:9"), "range_not_satisfiable",
            "/query/rows", "rows=2:4"),
    Mistake("rows with a hyphen", Request("GET", "/tensors/items/content?rows=0-2"), "invalid_field", "/query/rows",
            "rows=0:2"),
    Mistake("updates of another shape",
            Request("POST", "/tensors/items/scatter", json.dumps(scatter_body([[0]], ITEMS[:1, :2])).encode(), JSON),
            "updates_shape_mismatch", "/updates/shape", "[1, 3]"),
]  # fmt: skip
PROTOCOL = [
    gather("a type of ours", infer({**V2_DATA, "datatype": "float32"}, V2_INDICES), "unsupported_dtype",
           "/inputs/0/datatype", "FP32", V2),
    gather("an input misspelt", infer(V2_DATA, {**V2_INDICES, "name": "index"}), "invalid_field", "/inputs/1/name",
           "indices", V2),
    gather("an input missing", infer(V2_DATA), "invalid_field", "/inputs", "indices", V2),
    gather("an output misspelt", infer(V2_DATA, V2_INDICES, outputs=[{"name": "outputs"}]), "invalid_field",
           "/outputs/0/name", "'output'", V2),
    gather("a parameter of another model", infer(V2_DATA, V2_INDICES, parameters={"axis": 0}), "invalid_field",
           "/parameters/axis", "batch_dims", V2),
    gather("a ragged list in the protocol", infer({**V2_DATA, "shape": [2, 2], "data": [[1, 2], [3]]}, V2_INDICES),
           "element_count_mismatch", "/inputs/0/data", "/inputs/0/data/1", V2),
    gather("an index out of range in the protocol", infer(V2_DATA, {**V2_INDICES, "data": [2]}),
           "index_out_of_bounds", "/inputs/1/data/0", "-2 to 1", V2),
]  # fmt: skip
MISTAKES = [
    *MALFORMED, *FIELDS, *TYPES, *SHAPES, *NAMES, *HEADERS, *BINARIES, *TENSORS, *PROTOCOL,
]  # fmt: skip
