"""The requests of the golden corpus: valid ones, and every kind of wrong one, over the routes and formats.

Each group has a seed of its own and is made of `Source` alone, so that its bytes are the same everywhere. A group that
grows changes no other.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tests.golden.source import TYPES, Source, nested, packed, protocol, safetensors, tensor
from tests.golden.written import WRITTEN, Written
from tests.golden.written_keys import WRITTEN_KEYS
from tests.golden.written_routes import WRITTEN_ROUTES

Arrays = dict[str, dict[str, Any]]
BINARY = {"content-type": "application/x-safetensors"}
DIALECTS = {
    "/gathernd": ("onnx-13", "onnx-12", "onnx-11", "openvino-8"),
    "/gather": ("onnx-13", "onnx-11", "onnx-1", "openvino-8"),
    "/gather_elements": ("onnx-13", "onnx-11"),
    "/scatternd": ("onnx-18", "onnx-16", "onnx-13", "onnx-11"),
    "/scatter_elements": ("onnx-18", "onnx-16", "onnx-13", "onnx-11"),
    "/gathernd/backward": ("onnx-13", "onnx-12", "onnx-11", "openvino-8"),
    "/gather/backward": ("onnx-13", "onnx-11", "onnx-1", "openvino-8"),
}
PATHS = tuple(DIALECTS)
FORMS = ("flat", "nested", "base64", "safetensors", "protocol", "protocol, binary")
_TABLES = Source(0)
TABLES: Arrays = {
    f"g_{dtype}": tensor(dtype, [6, 2], _TABLES.items(dtype, 12)) for dtype in TYPES
} | {"g_row": tensor("float32", [5], _TABLES.items("float32", 5)), "g_empty": tensor("float32", [0, 2], []),
     "g_one": tensor("int8", [], [7])}  # fmt: skip
"""The resident tensors that the requests name."""


@dataclass(frozen=True)
class Asked:
    """A request, by the name of its group and its number there."""

    name: str
    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def digest(self) -> str:
        """Names the bytes of the request."""
        whole = repr((self.method, self.target, sorted(self.headers.items()), self.body))
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        fields = "".join(f"\n{name}: {value}" for name, value in self.headers.items())
        return f"{self.method} {self.target}{fields}\n\n{self.body[:1500]!r}"


@dataclass
class Call:
    """A request to an operator that no format has shaped yet."""

    path: str
    arrays: Arrays
    parameters: dict[str, Any]
    resident: str | None = None

    def copy(self) -> Call:
        return Call(self.path, json.loads(json.dumps(self.arrays)), dict(self.parameters), self.resident)


def call(by: Source, *, resident: bool = False) -> Call:
    """A valid request of any operator, but that some types are not of its dialect."""
    path = by.one(PATHS)
    dialect = by.one(DIALECTS[path])
    dtype = by.one(TYPES) if by.often(0.8) else "float32"
    if path.endswith("/backward") or "scatter" in path:
        dtype = by.one(("float16", "bfloat16", "float32", "float64"))
    parameters: dict[str, Any] = {"dialect": dialect} if by.often(0.7) else {}
    dialect = parameters.get("dialect", DIALECTS[path][0])
    shape = [6, 2] if resident else by.sizes(1 + by.below(3))
    rows, low = shape[0], -shape[0] if dialect not in ("onnx-1", "openvino-8") else 0
    count = 1 + by.below(4)
    chosen = [low + by.below(rows - low) for _ in range(count)]
    kind = "int32" if dialect == "openvino-8" and by.often(0.5) else "int64"
    if "nd" in path:
        index = tensor(kind, [count, 1], chosen)
    elif "elements" in path:
        index = tensor(kind, [count, *[1] * (len(shape) - 1)], chosen)
    else:
        index = tensor(kind, [count], chosen)
        if dialect == "openvino-8" or by.often(0.4):
            parameters["axis"] = 0
    after = [count, *shape[1:]] if "elements" not in path else index["shape"]
    after_count = 1
    for size in after:
        after_count *= size
    if path.endswith("/backward"):
        arrays = {"indices": index, "grad_output": tensor(dtype, after, by.items(dtype, after_count))}
        return Call(path, arrays, parameters | {"data_shape": shape})
    items = 1
    for size in shape:
        items *= size
    arrays = {"data": tensor(dtype, shape, by.items(dtype, items)), "indices": index}
    if "scatter" in path:
        arrays["updates"] = tensor(dtype, after, by.items(dtype, after_count))
        if by.often(0.4):
            parameters["reduction"] = by.one(("none", "add", "mul", "min", "max"))
    elif by.often(0.3):
        parameters["out_of_bounds"] = by.one(("error", "clip", "wrap", "fill"))
    if resident:
        del arrays["data"]
        return Call(path, arrays, parameters, f"g_{dtype}")
    return Call(path, arrays, parameters)


def asked(name: str, by: Source, made: Call, form: str | None = None) -> Asked:
    """The request in one of the formats."""
    form = form or by.one(FORMS if not made.path.endswith("/backward") else FORMS[:4])
    types = {given["dtype"] for given in made.arrays.values()}
    if form == "safetensors":
        query = {
            key: json.dumps(value) if not isinstance(value, str) else value for key, value in made.parameters.items()
        }
        query |= {} if made.resident is None else {"tensor": made.resident}
        query |= {"data_shape": ",".join(map(str, made.parameters["data_shape"]))} if "data_shape" in query else {}
        more = {"accept": "application/json"} if by.often(0.5) else {}
        return Asked(name, "POST", f"{made.path}?{urlencode(query)}", BINARY | more, safetensors(made.arrays))
    if form.startswith("protocol") and not any(each.startswith("complex") for each in types):
        body, headers = protocol(made.arrays, made.parameters, binary=form != "protocol")
        model = made.path[1:] if made.resident is None else made.resident
        return Asked(name, "POST", f"/v2/models/{model}/infer", headers, body)
    return Asked(name, "POST", made.path, {}, json.dumps(document(by, made, form)).encode())


def document(by: Source, made: Call, form: str) -> dict[str, Any]:
    """The JSON of the request."""
    shaped: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"nested": nested, "base64": packed}
    body: dict[str, Any] = {
        name: shaped.get(form, dict)(given) for name, given in made.arrays.items()
    } | made.parameters
    if made.resident is not None:
        body["data"] = {"tensor": made.resident}
    if by.often(0.2):
        body["output_encoding"] = by.one(("values", "base64"))
    return body


def valid(name: str, by: Source) -> Asked:
    return asked(name, by, call(by, resident=by.often(0.3)))


def broken_rule(name: str, by: Source) -> Asked:
    """A shape, an index, a parameter or a type that breaks a rule of the operator."""
    made = call(by, resident=by.often(0.2))
    for _ in range(1 + by.below(2)):
        array = made.arrays[by.one(sorted(made.arrays))]
        match by.below(7):
            case 0:
                made.arrays["indices"]["values"][0] = by.one((99, -99, 2**31 - 1, -(2**31)))
            case 1:
                array["shape"] = [1, *array["shape"]]
            case 2:
                made.parameters[by.one(("axis", "batch_dims"))] = by.one((-9, -1, 1, 2, 9, 2**40))
            case 3:
                array["dtype"] = by.one(("int64", "float64"))
                array["values"] = [1] * len(array["values"])
            case 4:
                made.parameters["dialect"] = by.one(
                    ("onnx-13", "onnx-12", "onnx-11", "onnx-1", "onnx-18", "openvino-8")
                )
            case 5:
                array["shape"] = [*array["shape"][:-1], 1, *array["shape"][-1:]]
            case 6:
                made.parameters["reduction"] = by.one(("add", "sub", "max"))
    return asked(name, by, made, by.one(("flat", "nested", "safetensors", "protocol")) if _sized(made) else "flat")


def _sized(made: Call) -> bool:
    """Whether each array has as many items as its shape says."""
    for given in made.arrays.values():
        items = 1
        for size in given["shape"]:
            items *= size
        if items != len(given["values"]):
            return False
    return not made.path.endswith("/backward")


FAR: tuple[Any, ...] = (1e39, -1e39, 300, 2**63, 2**64, -(2**63) - 1, "Infinity", "\ud800")
WRONG: tuple[Any, ...] = (None, True, 1, -1, 1.5, "x", "", [], [1], {}, {"a": 1}, 2**70, "1", "NaN")


def wrong_member(name: str, by: Source) -> Asked:
    """JSON in which a member is unknown, missing or of a wrong value, here or in an array."""
    made = call(by, resident=by.often(0.2))
    body = document(by, made, by.one(FORMS[:3]))
    for _ in range(1 + by.below(2)):
        within = body.get(by.one(sorted(made.arrays))) if by.often(0.5) else body
        if not isinstance(within, dict):
            continue
        key = by.one([*within, "extra", "values", "shape", "dtype", "axis", "batch_dims", "out_of_bounds", "fill_value",
                      "device", "tensor", "lda_coeff", "sparse", "outputEncoding", "Data"])  # fmt: skip
        if by.often(0.3):
            within.pop(key, None)
        else:
            within[key] = by.fresh(WRONG) if key != "device" else by.one((None, "tpu", 3, "cpu", "CPU"))
    return Asked(name, "POST", made.path, {}, json.dumps(body).encode())


def wrong_value(name: str, by: Source) -> Asked:
    """JSON in which an item, or how many there are, is not what the type and the shape say."""
    made = call(by)
    given = made.arrays[by.one(sorted(made.arrays))]
    listed = given["values"]
    match by.below(4):
        case 0:
            listed.append(0)
        case 1 if listed:
            del listed[-1]
        case 2 if listed:
            listed[by.below(len(listed))] = [[1]]
        case _ if listed:
            listed[by.below(len(listed))] = by.fresh(
                (*WRONG, 1e39, -1e39, 300, 2**63, 2**64, -(2**63) - 1, "Infinity", "\ud800")
            )
    form = by.one(("flat", "flat", "protocol"))
    if form == "protocol" and not made.path.endswith("/backward"):
        return asked(name, by, made, form)
    return Asked(name, "POST", made.path, {}, json.dumps(document(by, made, "flat")).encode())


PIECES = (
    b"", b",", b"}", b"{", b"]", b"[", b'"', b":", b"\\", b"\x00", b"\x01", b"\xff", b"\xc3", b"\xed\xa0\x80",
    b"NaN", b"-", b"01", b"1e", b"1.", b".5", b"+1", b"0x1", b"1e400", b"tru", b"null", b"'", b"//", b"\\u12",
    b"\\ud800", b" ", b"\n", b"\xef\xbb\xbf", b'"a":1,"a":1,', b'"dtype":"int8",', b"[[[[[[[[[[",
    b"18446744073709551616", b"Infinity", b"undefined", b"1 2",
)  # fmt: skip


def spoiled(by: Source, text: bytes) -> bytes:
    """The text with a piece cut out, put in, replaced or cut off; the same at one place or two."""
    for _ in range(1 + by.below(2)):
        at = by.below(len(text) + 1)
        match by.below(4):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + by.one(PIECES) + text[at:]
            case 2:
                text = text[:at] + text[at + 1 + by.below(3) :]
            case 3:
                text = text[:at] + by.one(PIECES) + text[at + 1 :]
    return text


def malformed_json(name: str, by: Source) -> Asked:
    made = call(by, resident=by.often(0.2))
    text = json.dumps(document(by, made, by.one(FORMS[:3])), separators=by.one(((",", ":"), (", ", ": ")))).encode()
    return Asked(name, "POST", made.path, {}, spoiled(by, text))


def malformed_protocol(name: str, by: Source) -> Asked:
    """An infer request whose text, header field or blobs are not what they say."""
    made = call(by)
    made.path = "/gathernd" if made.path.endswith("/backward") else made.path
    for given in made.arrays.values():
        if given["dtype"].startswith("complex"):
            given["dtype"], given["values"] = "float32", [0] * len(given["values"])
    body, headers = protocol(made.arrays, made.parameters, binary=by.often(0.5))
    if headers and by.often(0.6):
        size = int(headers["inference-header-content-length"])
        if by.often(0.5):
            headers = {
                "inference-header-content-length": by.one(
                    ("0", "-1", "x", "", "1e3", str(size + 1), str(size - 1), "99999")
                )
            }
        else:
            body = body[: by.below(len(body))] if by.often(0.7) else body + b"more"
    else:
        body = spoiled(by, body)
    return Asked(name, "POST", f"/v2/models/{made.path[1:]}/infer", headers, body)


def wrong_protocol(name: str, by: Source) -> Asked:
    """An infer request with a member that is unknown, missing or of a wrong value."""
    made = call(by)
    made.path = "/gathernd" if made.path.endswith("/backward") else made.path
    body: dict[str, Any] = json.loads(protocol(made.arrays, made.parameters, binary=False)[0])
    for _ in range(1 + by.below(2)):
        within = by.one(
            [body, body.get("parameters"), *(body["inputs"] if isinstance(body.get("inputs"), list) else ())]
        )
        if not isinstance(within, dict):
            continue
        key = by.one([*within, "id", "outputs", "parameters", "datatype", "shape", "data", "name", "axis", "batch_dims",
                      "dialect", "timeout", "binary_data_size"])  # fmt: skip
        if by.often(0.3):
            within.pop(key, None)
        else:
            within[key] = by.fresh((*WRONG, [{"name": "output"}], [{"name": "other"}], [{"name": "output", "parameters":
                                  {"classification": 1}}], "FP33", [2**40, 2**40], [-1]))  # fmt: skip
    return Asked(name, "POST", f"/v2/models/{made.path[1:]}/infer", {}, json.dumps(body).encode())


def malformed_safetensors(name: str, by: Source) -> Asked:
    """A safetensors body whose length, header or items are not what they say."""
    made = call(by)
    for given in made.arrays.values():
        if given["dtype"] == "complex128":
            given["dtype"], given["values"] = "float64", [0] * len(given["values"])
    body = safetensors(made.arrays)
    size = int.from_bytes(body[:8], "little")
    header, rest = json.loads(body[8 : 8 + size]), body[8 + size :]
    told = header[by.one(sorted(header))]
    match by.below(6):
        case 0:
            body = spoiled(by, body)
        case 1:
            body = by.one((0, 1, size - 1, size + 1, 2**40, 2**64 - 1)).to_bytes(8, "little") + body[8:]
        case 2:
            body = body[: by.below(len(body))] if by.often(0.7) else body + b"more"
        case 3:
            told["data_offsets"] = by.one(
                ([0, 0], [1, 9], [8, 0], [0, 10**9], [-1, 3], [0], "0", None, [0, 2**70], [0.5, 1])
            )
            body = _with_header(header, rest)
        case 4:
            told[by.one(("dtype", "shape", "data_offsets", "extra"))] = by.fresh(
                (*WRONG, "F33", "i64", [2**40, 2**40], [-1])
            )
            body = _with_header(header, rest)
        case 5:
            body = _with_header({"extra": told} | header, rest)
    query = {key: value for key, value in made.parameters.items() if isinstance(value, str | int)}
    query |= {"data_shape": "3,2"} if made.path.endswith("/backward") else {}
    return Asked(name, "POST", f"{made.path}?{urlencode(query)}", BINARY, body)


def _with_header(header: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


QUERIED = (
    "", "0", "1", "-1", "99", "x", "true", "1.0", "1e2", "0x1", "null", "[1]", "onnx-13", "cpu", "fill", "add", "a/b",
    "%00", "9" * 30, "NaN", "1 ",
)  # fmt: skip


def wrong_query(name: str, by: Source) -> Asked:
    """A query with a parameter that is unknown, comes twice or has a wrong value."""
    made = call(by, resident=by.often(0.3))
    pairs = [("tensor", made.resident)] if made.resident is not None else []
    pairs += (
        [("data_shape", by.one(("3,2", "3,2", "", "a", "3,,2", "-1", "3,2,")))]
        if made.path.endswith("/backward")
        else []
    )
    for _ in range(1 + by.below(2)):
        key = by.one(("axis", "batch_dims", "dialect", "device", "out_of_bounds", "fill_value", "reduction", "sparse",
                      "lda_coeff", "tensor", "extra", "explain", "output_encoding", "Axis"))  # fmt: skip
        value = by.one(QUERIED)
        if (key, value) not in (("explain", "true"), ("explain", "1")):
            pairs.append((key, value))
    if by.often(0.15):
        return Asked(
            name, "POST", f"{made.path}?{urlencode(pairs)}", {}, json.dumps(document(by, made, "flat")).encode()
        )
    return Asked(name, "POST", f"{made.path}?{urlencode(pairs)}", BINARY, safetensors(made.arrays))


def lookup(name: str, by: Source) -> Asked:
    """A lookup, mostly valid: rows and bags of some tables, in JSON, safetensors or the protocol."""
    features: list[dict[str, Any]] = []
    arrays: Arrays = {}
    dtype = by.one(("float16", "bfloat16", "float32", "float64", "int64", "string"))
    for number in range(1 + by.below(3)):
        pooling = by.one(("none", "none", "sum", "mean", "max")) if "float" in dtype else "none"
        told: dict[str, Any] = {"tensor": f"g_{dtype}"} | ({} if pooling == "none" else {"pooling": pooling})
        arrays[f"{number}.indices"] = tensor("int64", [3], [by.below(6) for _ in range(3)])
        if pooling != "none":
            arrays[f"{number}.offsets"] = tensor("int64", [3], [0, by.below(2), 1 + by.below(3)])
        features.append(told)
    rest: dict[str, Any] = {"concat": False} if by.often(0.3) else {}
    if by.often(0.3):
        rest["out_of_bounds"] = by.one(("clip", "wrap", "fill", "error", "ignore"))
    if by.often(0.4):
        chosen = arrays[by.one(sorted(arrays))]
        match by.below(5):
            case 0:
                chosen["values"][by.below(3)] = by.one((-1, 6, 2**40))
            case 1:
                features[by.below(len(features))]["tensor"] = by.one(
                    ("g_one", "g_empty", "g_none", "g_row", "g_int64", "", "a b")
                )
            case 2:
                features[by.below(len(features))][by.one(("pooling", "weights", "data", "axis"))] = by.fresh(WRONG)
            case 3:
                chosen["shape"] = by.one(([3, 1], [1, 3]))
            case 4:
                chosen["dtype"] = by.one(("int32", "uint8", "float32"))
    form = by.below(3)
    if form == 0:
        text = json.dumps({"features": features, **rest})
        return Asked(name, "POST", "/lookup", BINARY, safetensors(arrays, {"lookup": text}))
    if form == 1:
        text = json.dumps({"features": features, **rest})
        body, headers = protocol(arrays, {"lookup": text}, binary=by.often(0.5))
        return Asked(name, "POST", "/v2/models/lookup/infer", headers, body)
    for key, given in arrays.items():
        first, _, role = key.partition(".")
        features[int(first)][role] = given
    body = json.dumps({"features": features, **rest}).encode()
    return Asked(name, "POST", "/lookup", {}, spoiled(by, body) if by.often(0.15) else body)


def block_quantized(name: str, by: Source) -> Asked:
    """A block-quantized gather, in half of all valid: of arrays, and of scales that are resident."""
    bits, block_size, width = by.one((4, 8)), by.one((16, 32)), by.one((16, 24, 32))
    blocks = -(-width // block_size)
    size, zeros = width * bits // 8, -(-blocks * bits // 8)
    dtype = by.one(("float16", "bfloat16", "float32"))
    arrays = {
        "data": tensor("uint8", [6, size], by.items("uint8", 6 * size)),
        "indices": tensor(by.one(("int64", "int32")), [3], [by.below(12) - 6 for _ in range(3)]),
        "scales": tensor(dtype, [6, blocks], by.items(dtype, 6 * blocks)),
    }
    if by.often(0.5):
        arrays["zero_points"] = tensor("uint8", [6, zeros], by.items("uint8", 6 * zeros))
    given: dict[str, Any] = {"bits": bits, "block_size": block_size}
    if by.often(0.3):
        given["out_of_bounds"] = by.one(("error", "clip", "wrap", "fill"))
        arrays["indices"]["values"][0] = by.one((7, -9, 5))
    if by.often(0.2):
        given["output_dtype"] = by.one(("float16", "float32", "float64", "int8"))
    if by.often(0.5):
        match by.below(6):
            case 0:
                given[by.one(("bits", "block_size", "gather_axis", "quantize_axis", "axis"))] = by.one(
                    (-1, 0, 1, 2, 48, 2**40)
                )
            case 1:
                chosen = arrays[by.one(sorted(arrays))]
                chosen["dtype"], chosen["values"] = by.one(("int8", "float64", "uint8")), [1] * len(chosen["values"])
            case 2:
                arrays[by.one(sorted(arrays))]["shape"] = by.one(([6], [3, 2], [1, 6, 1], [0, 2]))
            case 3:
                arrays["indices"]["values"][1] = by.one((6, -7, 2**31 - 1))
            case 4:
                del arrays[by.one(sorted(arrays))]
            case 5:
                given["dialect"] = by.one(("onnxruntime-1", "onnx-13"))
    named = by.one(("g_float32", "g_float16", "g_uint8", "g_none")) if by.often(0.25) else None
    if named is not None:
        arrays.pop("scales", None)
    form = by.below(3) if all(each["dtype"] != "float64" for each in arrays.values()) else 0
    if form == 0:
        body = arrays | given | ({} if named is None else {"scales": {"tensor": named}})
        return Asked(name, "POST", "/gather_block_quantized", {}, json.dumps(body).encode())
    given |= {} if named is None else {"scales": named}
    made = Call("/gather_block_quantized", arrays, given)
    if not _sized(made):
        return Asked(name, "POST", made.path, {}, json.dumps(arrays | given).encode())
    return asked(name, by, made, "safetensors" if form == 1 else by.one(("protocol", "protocol, binary")))


TARGETS = (
    *PATHS, "/lookup", "/livez", "/readyz", "/errors", "/errors/index_out_of_bounds", "/errors/none", "/tensors",
    "/tensors/g_row", "/tensors/g_none", "/tensors/g_row@1", "/tensors/g_row@2", "/tensors/a%20b",
    "/tensors/g_row/content", "/tensors/g_row/content?rows=1:3", "/tensors/g_row/content?rows=3:1",
    "/tensors/g_row/content?rows=x", "/gathernd/", "/Gathernd", "/nothing", "/tensors/g_row/nothing", "/aliases",
    "/aliases/none", "/imports", "/imports/none", "/tensors?limit=2", "/tensors?limit=0", "/tensors?after=g_o&limit=1",
    "/v2", "/v2/health/live", "/v2/models/gathernd", "/v2/models/gather/config", "/v2/models/none",
    "/v2/models/none/infer", "/v2/models/g_row", "/v2/models/g_row/ready", "/v2/models/gathernd/versions/2",
    "/v2/models/g_row/versions/9/infer", "/v2/systemsharedmemory/status", "//gathernd", "/gathernd/../gather",
    "/gather%6Ed", "/tensors/", "/tensors/g_complex64/content", "/v2/models/g_complex64",
)  # fmt: skip
ACCEPTED = ("application/json", "application/octet-stream", "application/x-npy", "application/x-safetensors")
FIELDS: tuple[dict[str, str], ...] = (
    {}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "application/json; charset=latin-1"}, {"content-encoding": "br"}, {"content-encoding": "gzip"},
    {"origin": "https://example.com"}, {"host": "example.com"}, {"accept": "text/html"},
    {"accept": "application/x-safetensors;q=0, application/json"},
)  # fmt: skip


def other_route(name: str, by: Source) -> Asked:
    """Other methods, paths and fields than those of the operators; nothing that changes what is stored."""
    target = by.one(TARGETS)
    method = by.one(("GET", "GET", "HEAD", "OPTIONS", "POST", "PATCH", "TRACE"))
    if method == "POST":
        text = json.dumps(document(by, call(by), "flat")).encode()
        return Asked(name, method, by.one(PATHS), by.one(FIELDS), text)
    headers = {"accept": by.one(ACCEPTED)} if by.often(0.6) else {"range": "bytes=0-3"} if by.often(0.2) else {}
    return Asked(name, method, target, headers)


def listed(wanted: Iterable[Written]) -> tuple[int, Callable[[str, Source], Asked]]:
    """A group of requests that are written out."""
    found = tuple(wanted)
    return len(found), lambda name, _: Asked(name, *found[int(name.partition("/")[2])])


EVERY_TIME = WRITTEN | WRITTEN_KEYS | WRITTEN_ROUTES
"""Groups of which every request is asked in each run of the tests."""
GROUPS: dict[str, tuple[int, Callable[[str, Source], Asked]]] = {
    "valid": (560, valid),
    "rules": (480, broken_rule),
    "members": (380, wrong_member),
    "values": (260, wrong_value),
    "json": (420, malformed_json),
    "safetensors": (240, malformed_safetensors),
    "query": (160, wrong_query),
    "protocol_text": (160, malformed_protocol),
    "protocol_members": (160, wrong_protocol),
    "lookup": (160, lookup),
    "routes": (140, other_route),
    "block_quantized": (160, block_quantized),
    **{name: listed(wanted) for name, wanted in EVERY_TIME.items()},
}
"""How many requests each group has, and what makes one; each from a seed of its own."""


def requests() -> Iterator[Asked]:
    """The whole corpus."""
    return (each for group in GROUPS for each in of_group(group))


def of_group(group: str) -> Iterator[Asked]:
    """The requests of a group, each of which is made from its name alone."""
    count, make = GROUPS[group]
    for number in range(count):
        name = f"{group}/{number}"
        yield make(name, Source(zlib.crc32(name.encode())))
