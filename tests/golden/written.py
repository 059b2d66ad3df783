"""Requests of the golden corpus that are written out: mistakes that callers make and chance seldom does.

They name the corpus's resident tensors `g_...`. A list that grows at its end changes no other request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.golden.source import octets, safetensors
from tests.http.forms import tensor

ND, AXIS, ELEMENTS, SCATTER, LOOKUP = "/gathernd", "/gather", "/gather_elements", "/scatternd", "/lookup"
INFER = "/v2/models/gathernd/infer"
SIZE = "inference-header-content-length"
SAFETENSORS, NPY, RAW = "application/x-safetensors", "application/x-npy", "application/octet-stream"
TEN, ONE = b"1" * 10, tensor("int64", [1, 1], [0])
MATRIX, ROWS = tensor("float32", [2, 2], [0, 1, 2, 3]), tensor("int64", [2, 1], [0, 1])
PAIRS = tensor("int64", [2, 2], [0, 0, 1, 1])


class Written(NamedTuple):
    """A request without a name."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def post(target: str, sent: Any, **fields: str) -> Written:
    """A POST of bytes, or of the JSON of `sent`; fields are given with underscores."""
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return Written("POST", target, headers, sent if isinstance(sent, bytes) else json.dumps(sent).encode())


def binary(target: str, arrays: dict[str, Any], metadata: dict[str, str] | None = None) -> Written:
    return post(target, safetensors(arrays, metadata), content_type=SAFETENSORS)


def gather(data: Any = MATRIX, indices: Any = PAIRS, path: str = ND, **more: Any) -> Written:
    return post(path, {"data": data, "indices": indices, **more})


def item(data: Any) -> Written:
    """A gather of item 0 of what is at fault."""
    return gather(data, ONE)


TEXT = json.dumps({"data": MATRIX, "indices": PAIRS})


def malformed() -> Iterator[Written]:
    """Bodies that are no JSON, or none of a request."""
    for sent in (
        b"", b"nonsense", b'{"data": 01}', b'{"data": NaN}', b'{"a": 1, "a": 1}', b'{"a": {"b": 1, "b": 2}}',
        b'{"data": "\xff"}', b"\xef\xbb\xbf{}", b"{}\x00", b"[" * 600 + b"]" * 600, '{"data": {}}'.encode("utf-16"),
        b"// {}\n{}", b"[]", b"null", b"3", b'"text"', b"true", b"{}", TEXT.replace("[0, 1,", "[-inf, 1,", 1).encode(),
        b"\xef\xbb\xbf" + TEXT.encode(), TEXT.encode("utf-16"), TEXT.replace("{", '{"data": 1, ', 1).encode(),
    ):  # fmt: skip
        yield post(ND, sent)
    yield post(ND, {"data": MATRIX})
    yield post(ND, {"indices": PAIRS})
    yield post(ND, TEXT.encode(), content_encoding="br")
    yield post(ND, TEXT.encode(), x_gathernd_timeout="500ms")
    for kind in (
        "application/json",
        "Application/X-SafeTensors",
        f"{SAFETENSORS}; version=1",
        "application/safetensors",
    ):
        yield post(ND, safetensors({"data": MATRIX, "indices": PAIRS}), content_type=kind)
    for target in ("/gather_nd", "/readyz", "/gathernd?batch_dims=1", "/gather?axis=1", "/gathernd?x",
                   "/gathernd?a%2Fb=1&c=2", "/gathernd?explain=yes", "/gathernd?explain=", "/gathernd?explain=True",
                   "/gathernd?explain=true&explain=true", "/gathernd?explain=true&batch_dims=0",
                   "/gathernd?explained=true", "/tensors/g_row/scatter?explain=true"):  # fmt: skip
        yield post(target, TEXT.encode())


def _with(path: str, name: str, *values: Any, **more: Any) -> Iterator[Written]:
    """Gathers whose field has each of the values."""
    return (gather(path=path, **more | {name: value}) for value in values)


def members() -> Iterator[Written]:
    """Fields of a gather and members of its data that are unknown, missing or of a wrong value."""
    value: Any
    for name in ("batchdims", "axis", "a/b~c"):
        yield from _with(ND, name, 1)
    yield from _with(ND, "batch_dims", "0")
    yield from _with(AXIS, "batch_dims", 0, 1, None)
    for dialect in ("onnx-13", "onnx-11", "onnx-1"):
        yield gather(path=AXIS, dialect=dialect, axis=1, batch_dims=0)
    yield from _with(AXIS, "batch_dims", None, 0.5, "1", True, dialect="openvino-8", axis=0)
    yield gather(path=AXIS, dialect="openvino-8", batch_dims=0)
    yield gather(path=ELEMENTS, dialect="openvino-6")
    yield gather(path=ELEMENTS, dialect="openvino-6", axis=0, batch_dims=0)
    yield gather(path=AXIS, dialect="openvino-8", axis=0, out_of_bounds="clip", fill_value=1)
    yield gather(indices=ONE, path=ELEMENTS, dialect="openvino-6", axis=1)
    yield from _with(ND, "data", None, 1, "x", [], [1, 2], True, {"shape": [1], "values": [1]})
    yield from _with(ND, "indices", None, 1, "x", [], False, {"tensor": "x"})
    for name, values in (
        ("dtype", (None, 1, True, [], {})), ("type", ("float32",)), ("shape", (None, 4, "2,2", {}, True)),
        ("values", (None, {})), ("base64", ("AAAA",)),
    ):  # fmt: skip
        for value in values:
            yield gather(MATRIX | {name: value})
    for value in (-1, 1.5, "2", None, True, [2]):
        yield gather(MATRIX | {"shape": [2, value]})
    for value in (None, 1, [], "!", "AA", "AA=", "AA= =", "AA==\n", "A-__", "AA==AA==", "é"):
        yield gather({"dtype": "int8", "shape": [1], "base64": value})
    for data in ({"dtype": "int8", "shape": [1]}, {"dtype": "int8", "base64": "AA=="}, {"tensor": "x", "dtype": "i"}):
        yield gather(data)
    for reference in (None, 1, "", "a/b", ".a", "a" * 129, "a b", "ä", "g_row@", "g_rwo"):
        yield gather({"tensor": reference})
    yield from _with(ND, "dialect", None, 13, "", "onnx-1", "onnx-14", "ONNX-13", "openvino-5", [], {})
    yield from _with(AXIS, "dialect", "onnx-12", "onnx-7", 1)
    yield from _with(ND, "device", None, "", "tpu", "GPU", "cuda:0", 0)
    yield from _with(ND, "output_encoding", None, "json", "raw", 64)


def counts() -> Iterator[Written]:
    """Values that are nested otherwise than the shape says, or are too few or too many."""
    values: Any
    for shape, values in (
        ([2, 2], [[1, 2], [3]]), ([2, 2], [[1, 2, 3], [4]]), ([2, 2], [[1, 2], 3, 4]), ([2, 2], [1, [2], 3, 4]),
        ([2, 2], [[1, 2, 3, 4]]), ([2, 2], [[[1, 2], [3, 4]]]), ([4], [[1, 2], [3, 4]]), ([2, 0], [[], [], []]),
        ([2, 0], [[]]), ([2, 0, 3], [[[]], [[]]]), ([2], 1), ([3], [[1, 2], [3]]), ([4, 1], [[1, 2], [3, 4]]),
        ([2, 2], [[1], [2], [3], [4]]), ([2, 2], [[None, 2], [3]]), ([], [[5]]), ([], []), ([1], [[5]]), ([0], [0]),
        ([0, 2], [[], []]),
    ):  # fmt: skip
        yield item(tensor("int32", shape, values))
    for values in ([[], [1]], [[], [[]]], [[1, 2], [3]], [1, [2]], [[[1, 2]], [[3, 4, 5]]]):
        yield item({"dtype": "int32", "values": values})
    for values in (5, [1, 2, 3]):
        yield item({"dtype": "complex64", "values": values})
    for shape, values in (([2], [1, 2]), ([2], [1, 2, 3, 4]), ([2], [[1, 2], [3]]), ([1], [[1, 2, 3]])):
        yield item(tensor("complex64", shape, values))


def types() -> Iterator[Written]:
    """Types by the names that others give them, values that a type does not hold, and where a type is not taken."""
    for name in ("float", "double", "FP32", "Int64", "torch.float16", "<f4", "f32"):
        yield item(tensor(name, [2], [1, 2]))
    for dtype, good, wrong in (("uint8", 1, 300), ("int8", 1, 1.5), ("float32", 1, "nan"), ("bool", True, 1),
                               ("string", "a", 7)):  # fmt: skip
        yield item(tensor(dtype, [2], [good, wrong]))
    yield post(INFER, infer(parameters={}, inputs=[V2_DATA | {"datatype": "float32"}, V2_INDICES]))
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"):
        small = {"dtype": dtype, "shape": [2, 2], "base64": "AAECAw=="}
        yield from _with(ND, "dialect", "onnx-13", "onnx-12", "onnx-11", data=small)
        yield gather(small, ROWS, SCATTER, updates=small)
        yield post(ND + "/backward", {"indices": ROWS, "grad_output": small, "data_shape": [2, 2]})
        yield post(INFER, infer(inputs=[V2_DATA | {"datatype": dtype}, V2_INDICES]))
    for path, opset in ((SCATTER, 17), (SCATTER, 21), (SCATTER, 12), ("/scatter_elements", 15)):
        yield scatter(path, dialect=f"onnx-{opset}")
    for path, opset in ((ND, 21), (AXIS, 12), (AXIS, 14), (AXIS, 5), (ELEMENTS, 12)):
        yield gather(path=path, dialect=f"onnx-{opset}")
    yield gradient("/gather/backward", dialect="onnx-12")


def scatter(path: str = SCATTER, **more: Any) -> Written:
    given = {"data": tensor("float32", [3, 2], [0] * 6), "indices": tensor("int64", [2, 1], [0, 2])}
    return post(path, given | {"updates": tensor("float32", [2, 2], [1, 2, 3, 4])} | more)


def gradient(path: str = "/gathernd/backward", **more: Any) -> Written:
    given = {"indices": tensor("int64", [2, 1], [3, 0]), "grad_output": tensor("float32", [2, 2], [1, 2, 10, 20])}
    return post(path, given | ({} if "tensor" in more else {"data_shape": [4, 2]}) | more)


def operators() -> Iterator[Written]:
    """Mistakes in scatters, gradients, and with `out_of_bounds`."""
    flags: dict[str, Any] = {"data": tensor("bool", [2], [True, False]), "updates": tensor("bool", [1], [True])}
    yield scatter(reduction="ADD")
    yield scatter(**flags, indices=ONE, reduction="add")
    column = tensor("float32", [4, 1], [1] * 4)
    yield gradient(data_shape=[4, 10**30])
    yield gradient(tensor="g_int8")
    yield gradient(sparse="true")
    yield gradient(sparse=1)
    yield gradient(indices=tensor("int64", [4, 1, 1], [0] * 4), grad_output=column, sparse=True, batch_dims=1)
    one = tensor("int64", [1], [0])
    yield gradient("/gather/backward", indices=one, grad_output=column, sparse=True, axis=1)
    yield binary("/gathernd/backward?tensor=g_int8", {"indices": ONE, "grad_output": tensor("float32", [1], [1])})
    bytes_, far = tensor("int8", [3], [1, 2, 3]), tensor("int64", [2, 1], [0, 3])
    yield gather(bytes_, far, out_of_bounds="warp")
    filled: dict[str, Any] = {"indices": far, "out_of_bounds": "fill"}
    yield gather(bytes_, **filled, fill_value=300)
    yield gather(tensor("string", [2], ["a", "b"]), **filled, fill_value=0)
    yield gather(tensor("complex64", [1], [[1, 2]]), **filled, fill_value=0)
    for text in ("none", '"x"', "", "nan", "[1", "'x'"):
        yield binary(f"/gathernd?out_of_bounds=fill&fill_value={text}", {"data": MATRIX, "indices": far})


def signs() -> Iterator[Written]:
    """Values to fill with and coefficients that are -0, written in each way and place: the answers keep the sign."""
    far = {"indices": tensor("int64", [1, 1], [9])}
    one = {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [9]}
    features = json.dumps({"features": [{"tensor": "g_row", **far}], "out_of_bounds": "fill"})[:-1]
    for text in ("-0", "-0.0", "-0e1", "-1e-400"):
        for dtype, values, fill in (
            ("float64", [1], text),
            ("complex64", [[1, 1]], f"[{text}, {text}]"),
            ("int8", [1], text),
        ):
            sent = json.dumps({"data": tensor(dtype, [1], values), **far, "out_of_bounds": "fill"})[:-1]
            yield post(ND, f'{sent}, "fill_value": {fill}}}'.encode())
        query = {"out_of_bounds": "fill", "fill_value": text}
        yield binary(f"{ND}?out_of_bounds=fill&fill_value={text}", {"data": tensor("float32", [1], [1]), **far})
        data = {"name": "data", "datatype": "FP32", "shape": [1], "data": [1]}
        yield post(INFER, {"inputs": [data, one], "parameters": query})
        yield post(LOOKUP, f'{features}, "fill_value": {text}}}'.encode())
        lookup = f'{{"features": [{{"tensor": "g_row"}}], "out_of_bounds": "fill", "fill_value": {text}}}'
        yield binary(LOOKUP, {"0.indices": tensor("int64", [1], [9])}, {"lookup": lookup})
        given = json.dumps({"indices": ROWS, "grad_output": MATRIX, "data_shape": [3, 2]})[:-1]
        yield post("/gathernd/backward", f'{given}, "lda_coeff": {text}}}'.encode())
        target = f"/gathernd/backward?data_shape=3,2&lda_coeff={text}"
        yield binary(target, {"indices": ROWS, "grad_output": MATRIX})


def rows(**more: Any) -> dict[str, Any]:
    """A feature of two rows."""
    return {"tensor": "g_float32", "indices": tensor("int64", [2], [0, 3])} | more


def bags(**more: Any) -> dict[str, Any]:
    """A feature of two bags; members that are None are left out."""
    found = {"tensor": "g_float32", "indices": tensor("int64", [3], [0, 3, 1]), "pooling": "sum",
             "offsets": tensor("int64", [2], [0, 2])} | more  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def look_up(*features: Any, **more: Any) -> Written:
    return post(LOOKUP, {"features": features, **more})


def lookups() -> Iterator[Written]:
    """Mistakes in lookups."""
    wrong: dict[str, Any]
    floats = tensor("float32", [3], [1, 2, 3])
    of_bytes = bags(tensor="g_int8", indices=tensor("int64", [2], [0, 1]), offsets=tensor("int64", [1], [0]))
    yield look_up(bags(offsets=tensor("int64", [0], [])))
    for wrong in (
        {"offsets": tensor("int64", [1, 2], [0, 2])}, {"weights": floats, "pooling": "mean"}, {"pooling": "Mean"},
        {"weights": tensor("float32", [2], [1, 2])}, {"weights": tensor("float64", [3], [1, 2, 3])},
        {"indices": tensor("int64", [1, 3], [0, 3, 1])}, {"pooling": None}, {"offsets": None},
    ):  # fmt: skip
        yield look_up(rows(), bags(**wrong))
    few, unknown = bags(indices=tensor("int64", [5], [0])), bags(indices=tensor("int6", [5], [0] * 5))
    yield look_up(few, unknown)
    yield look_up(unknown, bags(extra=1))
    yield look_up(of_bytes)
    yield look_up(of_bytes | {"weights": tensor("int8", [2], [1, 1])})
    yield post(LOOKUP, {"features": rows()})
    yield look_up()
    yield look_up(rows(), dialect="onnx-13")
    yield look_up(rows(), concat="false")
    indices = tensor("int64", [1], [0])
    features = [{"tensor": "g_float32"}]
    good = {"lookup": json.dumps({"features": features})}
    for query in ("reduction=sum", "output_encoding=base64", "concat=true"):
        yield binary(f"/lookup?{query}", {"0.indices": indices}, good)
    yield post("/lookup?concat=true", {"features": [rows()]})
    yield post(LOOKUP, safetensors({}, {"lookup": ""})[:8], content_type=SAFETENSORS)
    for text in ("{", "[]", "{}", '{"features": [{"tensor": "g_row", "indices": 1}]}'):
        yield binary(LOOKUP, {}, {"lookup": text})
    for arrays in ({}, {"indices": indices}, {"0.indices": indices, "1.indices": indices}):
        yield binary(LOOKUP, arrays, good)
    strings = {"lookup": json.dumps({"features": [{"tensor": "g_string"}]})}
    sent = safetensors({"0.indices": indices}, strings)
    yield post(LOOKUP, sent, content_type=SAFETENSORS, accept=f"{SAFETENSORS}, application/json")
    model = "/v2/models/lookup/infer"
    one = {"name": "0.indices", "datatype": "INT64", "shape": [1], "data": [0]}
    for parameters in (None, {}, {"lookup": {"features": features}}, {"lookup": 3}, {"lookup": "{"}, {"lookup": "{}"}):
        yield post(model, {"inputs": [one]} | ({} if parameters is None else {"parameters": parameters}))
    for wrong in ({"name": "indices"}, {"datatype": "INT63"}, {"shape": [2]}, {"data": [0.5]}):
        yield post(model, {"inputs": [one | wrong], "parameters": good})
    yield post(model, {"inputs": [one, one], "parameters": good})
    yield post(model, {"inputs": [one], "parameters": good, "outputs": [{"name": "0.output"}]})
    for as_bytes in (False, True):
        chosen = [{"name": "1.output", "parameters": {"binary_data": as_bytes}}, {"name": "0.output"}]
        two = {"lookup": json.dumps({"features": features * 2, "concat": False})}
        yield post(model, {"inputs": [one, one | {"name": "1.indices"}], "parameters": two, "outputs": chosen})
    for body in (b"{", b'{"inputs": [], "inputs": [], "parameters": {"lookup": "{}"}}'):
        yield post(model, body)
    yield post(model, b"12345678", **{SIZE: "0"})
    for foreign in ({"axis": 0}, {"batch_dims": 0}, {"reduction": "none"}, {"dialect": "onnx-13"}, {"device": "auto"},
                    {"out_of_bounds": "clip"}, {"fill_value": "1"}):  # fmt: skip
        yield post(model, {"inputs": [one], "parameters": good | foreign})
    held = {"lookup": json.dumps({"features": [*features, {"tensor": "g_complex64"}], "concat": False})}
    yield post(model, {"inputs": [one, one | {"name": "1.indices"}], "parameters": held})


V2_DATA = {"name": "data", "datatype": "INT32", "shape": [2, 2], "data": [0, 1, 2, 3]}
V2_INDICES = {"name": "indices", "datatype": "INT64", "shape": [2, 2], "data": [0, 0, 1, 1]}


def infer(**more: Any) -> dict[str, Any]:
    """An infer request with other members."""
    return {"inputs": [V2_DATA, V2_INDICES]} | more


def of_data(**wrong: Any) -> Written:
    """An infer request whose data has other members."""
    return post(INFER, infer(inputs=[V2_DATA | wrong, V2_INDICES]))


def infers() -> Iterator[Written]:
    """Infer requests in each form that the protocol allows, and with what it does not."""
    inputs: Any
    outputs: Any
    parameters: Any
    wrong: dict[str, Any]
    for name in ("BOOL", "FP32", "BYTES", "INT8", "UINT64"):
        for bare in ("NaN", "Infinity", "-Infinity"):
            typed = json.dumps(infer(inputs=[V2_DATA | {"datatype": name}, V2_INDICES]))
            yield post(INFER, typed.replace("[0, 1, 2, 3]", f"[{bare}, 1, 2, 3]").encode())
    flags = {"name": "data", "datatype": "BOOL", "shape": [3], "parameters": {"binary_data_size": 3}}
    text = json.dumps(infer(inputs=[flags, V2_INDICES | {"shape": [4, 1]}])).encode()
    yield post(INFER, text + b"\1\0\2", **{SIZE: str(len(text))})
    string = flags | {"datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}}
    text = json.dumps(infer(inputs=[string, V2_INDICES | {"shape": [4, 1]}])).encode()
    yield post(INFER, text + b"\1\0\0\0\xff", **{SIZE: str(len(text))})
    yield of_data(data=[[0, 1], [2, 3]])
    for path in ("gathernd/versions/1", "gathernd/versions/2", "gathernd/versions/01", "nothing", "Gathernd", "stats",
                 "", "g_float32/versions/1", "g_complex64"):  # fmt: skip
        yield post(f"/v2/models/{path}/infer", infer())
    for identifier in ('a "quoted" ä\n', "", None, 7, "\ud800", "a\udc00"):
        yield post(INFER, infer(id=identifier))
    for parameters in (
        {"batch_dims": True}, {"batch_dims": 0.5}, {"batch_dims": "0"}, {"batch_dims": None}, {"dialect": 13},
        {"timeout": -1}, {"timeout": "1"}, {"binary_data_output": 1}, {"fill_value": 0, "out_of_bounds": "fill"},
        {"fill_value": "nan", "out_of_bounds": "fill"}, {"fill_value": "1.5", "out_of_bounds": "fill"}, [], None,
        {"sequence_id": 3, "sequence_start": True, "sequence_end": "x", "priority": -1, "own": {"a": []}},
    ):  # fmt: skip
        yield post(INFER, infer(parameters=parameters))
    yield post(INFER, infer(model_name="x", surprise=[{"data": [1]}, None]))
    asked: list[Any] = [{"name": "output"}]
    for outputs in (
        None, [], asked, [{"name": "output", "more": 1, "parameters": {"odd": 1}}], [{"name": "other"}], [{}],
        asked * 2, ["output"], {"name": "output"}, [{"name": "output", "parameters": []}],
    ):  # fmt: skip
        for chosen in (False, True):
            yield post(INFER, infer(outputs=outputs, parameters={"binary_data_output": chosen}))
    for own in ({"binary_data": True}, {"binary_data": False}, {"binary_data": 1}, {"classification": 3},
                {"shared_memory_region": "r"}):  # fmt: skip
        for chosen in (False, True):
            outputs = [{"name": "output", "parameters": own}]
            yield post(INFER, infer(outputs=outputs, parameters={"binary_data_output": chosen}))
    for inputs in (None, {}, [], [1]):
        yield post(INFER, infer(inputs=inputs))
    for wrong in (
        {"name": "values"}, {"name": "indices"}, {"name": None}, {"datatype": "FP8"}, {"datatype": "fp32"},
        {"datatype": None}, {"shape": None}, {"shape": [2, -2]}, {"shape": [2, "2"]}, {"shape": [2, True]},
        {"shape": [2, 3]}, {"data": None}, {"data": {}}, {"parameters": 1}, {"parameters": {"binary_data_size": 16}},
        {"parameters": {"shared_memory_region": "r"}}, {"parameters": None}, {"comment": {"data": 1}},
        {"parameters": {"content_type": "np"}},
    ):  # fmt: skip
        yield of_data(**wrong)
    yield post(INFER, infer(inputs=[V2_DATA, V2_INDICES | {"data": [[0, 0], [1, -3]]}]))
    empty = {"name": "data", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    yield post(INFER, infer(inputs=[empty, V2_INDICES | {"shape": [0, 1], "data": []}]))
    text = json.dumps(infer()).encode()
    yield post(INFER, text, **{SIZE: str(len(text))})
    for kind in (RAW, "application/json", "text/plain; charset=x", "no type"):
        yield post(INFER, text, content_type=kind)
    update = {"name": "updates", "datatype": "INT32", "shape": [2], "data": [3, 4]}
    for given in ([update], [update, update]):
        for outputs in (asked, asked * 2):
            yield post("/v2/models/scatternd/infer", infer(inputs=[V2_DATA, V2_INDICES, *given], outputs=outputs))
    yield post(INFER, infer(inputs=[V2_DATA, V2_INDICES], parameters={"out_of_bounds": "fill", "fill_value": 1.5}))


def hostile_infers() -> Iterator[Written]:
    """Infer requests whose shapes and sizes are made to overflow, in JSON and in binary."""
    shape: list[Any]
    size: Any
    for shape in (
        [-1], [-2, -2], [2, -2], [2**63], [2**64 + 4], [2**32, 2**32], [2**62, 4], [2**31, 2**31, 4], [10**30],
        [2**40] * 20, [1] * 40 + [4], [4] + [1] * 10_000, [1e308], [4.0, 0.5], [None], [[4]], ["4"],
    ):  # fmt: skip
        yield of_data(shape=shape)
        yield of_bytes(16, 32, shape=shape)
    for size, rest in ((15, 33), (17, 31), (0, 48), (48, 0), (-1, 32), (-(2**63), 32), (1.5, 32), ("16", 32),
                       (True, 32), ([16], 32)):  # fmt: skip
        yield of_bytes(size, rest)
    odd: Any = {"data": [{"data": [[1, 2], "data"]}], "x": {"data": {"data": 5}}}
    first = {"data": [0, 1, 2, 3], "x": odd, **V2_DATA}
    yield post(INFER, infer(inputs=[first, V2_INDICES], data=[1], y=[odd, {"data": "["}], parameters={"z": odd}))


def of_bytes(size: Any, rest: int, **wrong: Any) -> Written:
    """An infer request in binary, whose inputs are said to have `size` and `rest` bytes."""
    inputs = [
        {name: value for name, value in given.items() if name != "data"} | {"parameters": {"binary_data_size": told}}
        for given, told in ((V2_DATA | wrong, size), (V2_INDICES, rest))
    ]
    text = json.dumps(infer(inputs=inputs)).encode()
    return post(INFER, text + bytes(48), **{SIZE: str(len(text))})


def residents() -> Iterator[Written]:
    """Models of resident tensors: indices in every form, and what else their requests may not have."""
    given: dict[str, Any]
    model = "/v2/models/g_float32/infer"
    for given in (
        {"data": [3, 5]}, {"data": [[3], [-1]]}, {"data": [[3, 1]]}, {"data": [[[3], [5]]]}, {"data": []},
        {"data": [3, 5], "datatype": "INT64"}, {"data": [3, 5], "datatype": None, "shape": None},
        {"data": [3, 1], "shape": [2]}, {"data": [3, 5], "shape": [2, 1]}, {"data": [[3], [4, 5]]}, {"data": [[3], 4]},
        {"data": [3.5]}, {"data": [3, 500]}, {"data": [3], "datatype": 5}, {"data": [3], "datatype": "FP7"},
        {"data": [3], "shape": "1"}, {"parameters": {"binary_data_size": 0}}, {},
    ):  # fmt: skip
        yield post(model, {"inputs": [{"name": "indices", **given}]})
    yield post(model, infer())
    yield post(model, {"inputs": [V2_INDICES | {"data": [0, 1, 5, 0]}], "parameters": {"axis": 0}})
    for content in (bytes(15), bytes(16), (500).to_bytes(8, "little"), b""):
        yield post(model, content, **{SIZE: "0"})
    one = {"name": "indices", "datatype": "INT64", "shape": [2, 1], "parameters": {"binary_data_size": 16}}
    text = json.dumps({"inputs": [one], "parameters": {"binary_data_output": True}}).encode()
    yield post(model, text + octets(ROWS), **{SIZE: str(len(text))})


def uploads() -> Iterator[Written]:
    """Uploads and aliases that are refused."""
    for target, headers in (
        ("g_new?dtype=float32&shape=5,3", {"content-type": RAW}), ("g_new?dtype=float32", {"content-type": NPY}),
        ("g_int8@2", {"content-type": NPY}), ("g_int8", {"content-type": NPY, "if-none-match": "*"}),
        ("g_new", {"content-type": NPY, "if-match": '"old"'}), ("lookup?dtype=int8&shape=10", {"content-type": RAW}),
    ):  # fmt: skip
        yield Written("PUT", f"/tensors/{target}", headers, TEN)
    yield Written("PUT", "/aliases/live", {"content-type": "application/json"}, b'{"tensor": "g_row"}')
    for moves in (
        b'{"a": "g_row"}', b'{"a": {"tensor": "g_row@1", "if_match": "*"}}', b'{"a": {}}', b'{"a/b": "g_row@1"}', b"{}",
    ):  # fmt: skip
        yield Written("PUT", "/aliases", {"content-type": "application/json"}, b'{"aliases": %b}' % moves)
    yield Written("PUT", "/tensors/g_new?dtype=int8&shape=10&note=a%09b", {"content-type": RAW}, TEN)
    yield Written("PUT", "/tensors/g_new?dtype=int8&shape=10&replicas=2", {"content-type": RAW}, TEN)
    yield Written("PUT", "/tensors/g_row/replicas", {"content-type": "application/json"}, b'{"replicas": 2}')
    yield Written("GET", "/v2/models/gathernd/versions/2", {}, b"")


_SPARSE = {"indices": ROWS, "grad_output": MATRIX}
_LOOKUP = {"tensor": "g_float32", "indices": tensor("int64", [2], [0, 1])}
_RARE: tuple[Written, ...] = (
    gather(tensor("int8", [], [1]), tensor("int64", [1], [0])),
    gather({"tensor": "g_one"}, tensor("int64", [1], [0])),
    gather(MATRIX, tensor("int64", [], [0])),
    gather(MATRIX, tensor("int64", [1, 0], [])),
    gather(MATRIX, tensor("int64", [1, 3], [0, 0, 0])),
    gather(MATRIX, tensor("int64", [1, 1], [0]), batch_dims=1),
    gather(MATRIX, tensor("int64", [3, 2, 1], [0] * 6), batch_dims=1),
    gather(MATRIX, ROWS, batch_dims=10**30),
    gather(MATRIX, ROWS, device="gpu"),
    gather(MATRIX, ROWS, "/gather", device="gpu"),
    gather(MATRIX, tensor("int64", [40], list(range(-20, 20))), "/gather"),
    gather(MATRIX, tensor("int64", [3, 1], [0, 0, 0]), "/gather_elements", axis=1),
    gather(MATRIX, tensor("int64", [2], [0, 0]), "/gather_elements"),
    gather(tensor("int8", [1] * 33, [0]), tensor("int64", [1, 1], [0])),
    gather(tensor("int8", [2**63, 0], []), tensor("int64", [0, 1], [])),
    gather(tensor("int16", [2**62, 0, 2], []), tensor("int64", [0, 1], [])),
    gather(tensor("bool", [1, 2**40, 0], []), tensor("int64", [3, 2**40, 0, 1], [])),
    gather(tensor("float32", [2**62, 4], [0]), ROWS),
    gather({"tensor": "g_flaot32"}, ROWS),
    gather({"tensor": "g_float32"}, ROWS, dialect="openvino-8", axis=0),
    gather({"tensor": "g_complex64"}, ROWS, dialect="openvino-8"),
    gather({"tensor": "g_empty"}, ROWS, out_of_bounds="clip"),
    gather({"tensor": "g_empty"}, ROWS, out_of_bounds="fill"),
    post("/gathernd/backward", _SPARSE | {"data_shape": [2**62, 2]}),
    post("/gathernd/backward", _SPARSE | {"data_shape": [2**32, 2]}),
    post("/gathernd/backward", _SPARSE | {"data_shape": [2, 2], "lda_coeff": 1e39}),
    post("/gathernd/backward", _SPARSE | {"tensor": "g_float64"}),
    post("/gathernd/backward", _SPARSE | {"tensor": "g_none"}),
    post("/lookup", {"features": [_LOOKUP] * 1025}),
    post("/lookup", {"features": [_LOOKUP | {"pooling": "sum", "offsets": tensor("int64", [2], [1, 0])}]}),
    post("/lookup", {"features": [_LOOKUP, {**_LOOKUP, "tensor": "g_float64"}]}),
    post("/tensors/g_none/scatter", {"indices": ROWS, "updates": MATRIX}),
    post("/tensors/g_float32/scatter", {"indices": ROWS, "updates": tensor("float64", [2, 2], [0] * 4)}),
    post(
        "/tensors/g_float32/scatter",
        {"indices": tensor("int64", [1, 1], [6]), "updates": tensor("float32", [1, 2], [0, 0])},
    ),
)
_CONDITIONS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("PUT", "/tensors/g_row", {"if-match": '"other"'}),
    ("DELETE", "/tensors/g_row", {"if-match": '"other"'}),
    ("PUT", "/tensors/gathernd?dtype=int8&shape=1", {}),
    ("PUT", "/tensors/a%20b?dtype=int8&shape=1", {}),
    ("PUT", "/tensors/g_new?dtype=int9&shape=1", {"content-type": "application/octet-stream"}),
    ("PUT", "/tensors/g_new?dtype=int8", {"content-type": "application/octet-stream"}),
    ("PUT", "/tensors/g_new", {"content-type": "application/x-npy"}),
    ("PUT", "/tensors/g_new", {"content-type": "application/x-safetensors"}),
    ("PUT", "/tensors/g_new", {"content-type": "text/plain"}),
    ("PUT", "/aliases/g_row", {"content-type": "application/json"}),
    ("DELETE", "/aliases/none", {}),
    ("POST", "/tensors/g_new/import", {}),
    ("POST", "/v2/models/g_complex64/infer", {}),
    ("POST", "/v2/models/none/infer", {}),
    ("POST", "/v2/systemsharedmemory/region/x/register", {}),
    ("POST", "/gathernd", {"content-type": "application/x-www-form-urlencoded"}),
    ("POST", "/gathernd", {"origin": "https://example.com"}),
)


def rare() -> Iterator[Written]:
    """Requests for the codes that chance seldom comes to."""
    yield from _RARE
    for method, target, headers in _CONDITIONS:
        yield Written(method, target, headers, b'{"tensor": "g_row@1"}' if target.startswith("/aliases") else b"x")
    yield gather(MATRIX, tensor("int64", [1], [0]), AXIS, axis=2)


WRITTEN: dict[str, Iterator[Written]] = {
    "malformed": malformed(),
    "fields": members(),
    "counts": counts(),
    "types": types(),
    "operators": operators(),
    "signs": signs(),
    "features": lookups(),
    "infer": infers(),
    "hostile_infer": hostile_infers(),
    "resident_models": residents(),
    "uploads": uploads(),
    "rare": rare(),
}
