"""Scatters, gradients and lookups that make a service hold much, in every format (see `test_memory_budget`).

Tensors that are resident: `flat` (2^20 float64), `texts` (1,000 strings) and `table`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.http.lookups import Given, as_json, as_safetensors, loaded
from tests.http.memory_asks import BINARY, MIB, Ask, deflated, in_chunks, json_call, ordered, texts
from tests.oip.bodies import octets

TABLE = np.arange(65_536, dtype=np.float32).reshape(4096, 16)
DATATYPES = {"float32": "FP32", "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "object": "BYTES"}
Input = tuple[NDArray[Any], list[int]]


def infer(model: str, parts: dict[str, Input], right: Callable[[bytes], bool], **parameters: Any) -> Ask:
    """An infer request with the items of its inputs, each with its shape, behind the JSON."""
    inputs, raws = [], []
    for name, (array, shape) in parts.items():
        raw = octets(array)
        size = {"binary_data_size": len(raw)}
        inputs.append({"name": name, "datatype": DATATYPES[array.dtype.name], "shape": shape, "parameters": size})
        raws.append(raw)
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True, **parameters}}).encode()
    fields = (f"Inference-Header-Content-Length: {len(head)}",)
    return Ask(f"/v2/models/{model}/infer", head + b"".join(raws), fields, right)


def repeated(text: str, count: int) -> bytes:
    return b"[" + b",".join([text.encode()] * count) + b"]"


def is_scattered(body: bytes) -> bool:
    output = load(body)["output"]
    return bool((output[: 2 * MIB] == 1).all() and not output[2 * MIB :].any())


def scatter_binary(operator: str) -> Ask:
    """A quarter of the data is updated."""
    indices = np.arange(2 * MIB)
    body = save(
        {
            "data": np.zeros(8 * MIB, np.float32),
            "indices": indices.reshape(-1, 1) if operator == "scatternd" else indices.astype(np.int32),
            "updates": np.ones(2 * MIB, np.float32),
        }
    )
    return Ask(f"/{operator}?reduction=add", body, (BINARY,), is_scattered)


def scatter_bad_index(operator: str) -> Ask:
    indices = np.zeros(4 * MIB, np.int64)
    indices[-1] = 9
    body = save(
        {
            "data": ordered(9),
            "indices": indices.reshape(-1, 1) if operator == "scatternd" else indices,
            "updates": ordered(4 * MIB),
        }
    )
    return Ask(f"/{operator}", body, (BINARY,), lambda _: False, ("index_out_of_bounds",))


def scatter_json(operator: str) -> Ask:
    """Bodies of text of which the arrays are a part, and an answer as base64."""
    count = 2 * MIB
    shape = f"[{count},1]" if operator == "scatternd" else f"[{count}]"
    body = (
        b'{"reduction":"max","output_encoding":"base64","data":{"dtype":"uint8","shape":[%d],"values":' % count
        + repeated("7", count)
        + b'},"indices":{"dtype":"int64","shape":%s,"values":' % shape.encode()
        + repeated("5", count)
        + b'},"updates":{"dtype":"uint8","shape":[%d],"values":' % count
        + repeated("9", count)
        + b"}}"
    )
    return Ask(f"/{operator}", body, right=lambda body: len(body) > count)


def scatter_strings() -> Ask:
    """Strings whose frames are joined with those of the updates."""
    count = 200_000
    data = {"dtype": "string", "shape": [count], "values": texts(count, True)}
    indices = {"dtype": "int64", "shape": [count, 1], "values": list(range(count))[::-1]}
    new = [text[::-1] for text in texts(count, False)]
    updates = {"dtype": "string", "shape": [count], "values": new}
    return Ask(
        "/scatternd", json_call(data, indices, updates=updates),
        right=lambda body: json.loads(body)["output"]["values"] == new[::-1],
    )  # fmt: skip


def scatter_v2_unaligned() -> Ask:
    count = 3 * MIB
    parts = {
        "data": (ordered(257), [257]),
        "indices": (np.full(count, 256), [count]),
        "updates": (ordered(count), [count]),
    }
    last = int((count - 1) % 256)
    return infer("scatter_elements", parts, lambda body: body[-2:] == bytes([255, last]))


def scatter_v2_strings() -> Ask:
    count = 200_000
    array = np.array(texts(count, True), object)
    parts = {"data": (array, [count]), "indices": (np.arange(count), [count, 1]), "updates": (array[::-1], [count])}
    return infer("scatternd", parts, lambda body: body.endswith(array[0].encode()))


def explained(ask: Ask) -> Ask:
    joint = "&" if "?" in ask.path else "?"
    path = f"{ask.path}{joint}explain=true"
    return Ask(path, ask.body, ask.fields, lambda body: "explanation" in json.loads(body), ask.refusals)


def backward_binary(route: str, query: str, index_type: str = "int64", **more: Any) -> Ask:
    """1.5 million slices of four float32 that go to 1,000 places, in turn."""
    count = 1_500_000
    places = np.arange(count) % 1000
    indices = places.astype(index_type)
    body = save(
        {
            "grad_output": np.ones((count, 4), np.float32),
            "indices": indices.reshape(-1, 1) if route.startswith("/gathernd") else indices,
        }
    )
    name = "grad_values" if "sparse" in query else "grad_data"
    return Ask(
        f"{route}?{query}", body, (BINARY,), lambda body: bool((load(body)[name] == count // 1000).all()), **more
    )


def backward_deep() -> Ask:
    """Tuples of three components, all distinct: as many come back as were sent."""
    axis = np.arange(1_000_000)
    indices = np.stack((axis // 10_000, axis // 100 % 100, axis % 100), axis=1)
    body = save({"indices": indices, "grad_output": np.ones(1_000_000, np.float32)})
    return Ask(
        "/gathernd/backward?data_shape=100,100,100&sparse=true", body, (BINARY,),
        lambda body: bool(np.array_equal(load(body)["grad_indices"], indices)),
    )  # fmt: skip


def backward_far() -> Ask:
    """As many places as a tensor may have, most of them empty."""
    places = np.arange(1_500_000)[::-1].copy() << 12
    body = save({"indices": places.reshape(-1, 1), "grad_output": np.ones(1_500_000, np.float32)})
    return Ask(
        f"/gathernd/backward?data_shape={1 << 33}&sparse=true", body, (BINARY,),
        lambda body: bool(np.array_equal(load(body)["grad_indices"].ravel(), places[::-1])),
    )  # fmt: skip


def backward_filled() -> Ask:
    """Gather-8 fills what is out of bounds, so that nothing flows back from there: every second index."""
    count = 1_500_000
    indices = np.where(np.arange(count) % 2, 1_000_000, 3).astype(np.int32)
    body = save({"indices": indices, "grad_output": np.ones((count, 4), np.float32)})
    return Ask(
        "/gather/backward?dialect=openvino-8&axis=0&data_shape=5,4", body, (BINARY,),
        lambda body: load(body)["grad_data"].sum(axis=1).tolist() == [0, 0, 0, 2 * count, 0],
    )  # fmt: skip


def backward_bad_index() -> Ask:
    indices = np.zeros((3_000_000, 1), np.int64)
    indices[-1] = 7
    body = save({"indices": indices, "grad_output": np.ones(3_000_000, np.float32)})
    return Ask("/gathernd/backward?data_shape=7", body, (BINARY,), lambda _: False, ("index_out_of_bounds",))


def backward_narrow() -> Ask:
    """Indices of a byte under GatherND-8: four times as many bytes of grad_output."""
    count = 6_000_000
    body = save({"indices": np.full((count, 1), 255, np.uint8), "grad_output": np.ones(count, np.float32)})
    return Ask(
        "/gathernd/backward?dialect=openvino-8&data_shape=256", body, (BINARY,),
        lambda body: load(body)["grad_data"][-1] == count,
    )  # fmt: skip


def backward_json(encoding: str) -> Ask:
    """Many places with a long text each, and many slices."""
    count = MIB
    body = (
        b'{"data_shape":[%d],"lda_coeff":0.1,"output_encoding":"%s","indices":{"dtype":"int64","shape":[%d,1],"values":'
        % (3 * count, encoding.encode(), count)
        + repeated("1048575", count)
        + b'},"grad_output":{"dtype":"float64","shape":[%d],"values":' % count
        + repeated("0.1", count)
        + b"}}"
    )
    return Ask("/gathernd/backward", body, right=lambda body: len(body) > 3 * count)


def backward_resident() -> Ask:
    indices = {"dtype": "int64", "shape": [MIB], "base64": b64encode(np.arange(MIB).tobytes()).decode()}
    gradient = {"dtype": "float64", "shape": [MIB], "base64": b64encode(np.ones(MIB).tobytes()).decode()}
    body = {"tensor": "flat", "indices": indices, "grad_output": gradient, "sparse": True}
    return Ask("/gather/backward", json.dumps(body).encode(), right=lambda body: len(body) > 8 * MIB)


def bags(kind: Any = np.int64) -> Given:
    """A million bags of four rows."""
    count = 4_000_000
    indices = (np.arange(count) % 4096).astype(kind)
    return Given("table", indices, np.arange(0, count, 4, dtype=kind), pooling="sum")


def lookup_binary() -> Ask:
    given = bags(np.int32)
    wanted = TABLE.reshape(-1, 4, 16).astype(np.float64).sum(axis=1)  # whole numbers, which float32 has exactly
    return Ask(
        "/lookup", as_safetensors([given]), (BINARY,),
        lambda body: bool(np.array_equal(loaded(body)[0]["output"][:1024], wanted)),
    )  # fmt: skip


def lookup_rows(concat: bool) -> Ask:
    """Rows of several features, joined or each for itself."""
    features = [Given("table", np.arange(number, number + 400_000) % 4096) for number in range(3)]
    body = as_safetensors(features, concat=concat)

    def right(body: bytes) -> bool:
        outputs = loaded(body)[0]
        found = outputs["output"] if concat else np.concatenate(list(outputs.values()), axis=1)
        return bool(np.array_equal(found[:4000, 16:32], TABLE[1:4001]))

    return Ask("/lookup", body, (BINARY,), right)


def lookup_replaced(mode: str) -> Ask:
    """int32 indices of which each second one is out of bounds; bags of two."""
    count = 2_000_000
    indices = np.where(np.arange(count) % 2, 2**30, 1).astype(np.int32)
    given = Given("table", indices, np.arange(0, count, 2, dtype=np.int32), pooling="max")

    def right(body: bytes) -> bool:
        outputs, told = loaded(body)
        return bool(told["replaced"] == count // 2 and outputs["output"].shape == (count // 2, 16))

    return Ask("/lookup", as_safetensors([given], out_of_bounds=mode), (BINARY,), right)


def lookup_bad_index() -> Ask:
    given = bags()
    given.indices[-1] = 4096
    return Ask("/lookup", as_safetensors([given]), (BINARY,), lambda _: False, ("index_out_of_bounds",))


def lookup_bad_offsets() -> Ask:
    """Every offset but the first is beyond the indices."""
    offsets = np.full(8 * MIB, 9, np.int32)
    offsets[0] = 0
    given = Given("flat", np.zeros(3, np.int32), offsets, pooling="mean")
    return Ask("/lookup", as_safetensors([given]), (BINARY,), lambda _: False, ("offsets_invalid",))


def lookup_json(encoding: str) -> Ask:
    """Weighted sums, of which the answer is as large as the request."""
    count = 600_000
    given = Given(
        "table", np.arange(count) % 4096, np.arange(0, count, 6), np.full(count, 0.1, np.float32), pooling="sum"
    )
    body = json.dumps(as_json([given], output_encoding=encoding)).encode()
    return Ask("/lookup", body, right=lambda body: json.loads(body)["output"]["shape"] == [count // 6, 16])


def lookup_large_answer(encoding: str) -> Ask:
    """A small request whose answer is large."""
    given = Given("table", np.full(150_000, 4095, np.int32))
    body = json.dumps(as_json([given, given], output_encoding=encoding, concat=False)).encode()
    return Ask("/lookup", body, right=lambda body: len(body) > 16 * MIB)


def lookup_strings(concat: bool, encoding: str = "values") -> Ask:
    given = Given("texts", np.arange(200_000) % 1000)
    more: dict[str, Any] = {"output_encoding": encoding, "concat": concat}
    body = json.dumps(as_json([given, given], **more)).encode()

    def right(body: bytes) -> bool:
        answer = json.loads(body)
        first = answer["output"] if concat else answer["outputs"][1]
        return encoding == "base64" or first["values"][-1] == texts(1000, True)[-1]

    return Ask("/lookup", body, right=right)


def lookup_v2(binary: bool) -> Ask:
    """An odd number of int32 items, behind which int64 items are not aligned."""
    count = 3_000_001
    short = Given("table", np.zeros(count, np.int32), np.zeros(1, np.int32), pooling="max")
    wide = Given("table", np.arange(count) % 4096, np.array([0]), pooling="max")
    features = [short, wide]
    parts = {
        f"{number}.{name}": (array, [array.size])
        for number, given in enumerate(features)
        for name, array in given.arrays().items()
    }
    lookup = json.dumps({"features": [given.fields() for given in features]})
    row = np.concatenate((TABLE[0], TABLE[4095]))
    if binary:
        return infer("lookup", parts, lambda body: body.endswith(row.tobytes()), lookup=lookup)
    inputs = [
        {"name": name, "datatype": DATATYPES[array.dtype.name], "shape": shape, "data": array[: 1 << 20].tolist()}
        for name, (array, _) in parts.items()
        for shape in [[array[: 1 << 20].size]]
    ]
    body = json.dumps({"inputs": inputs, "parameters": {"lookup": lookup}}).encode()
    return Ask(
        "/v2/models/lookup/infer", body,
        right=lambda body: json.loads(body)["outputs"][0]["data"] == row.tolist(),
    )  # fmt: skip


def cases() -> dict[str, Callable[[], Ask]]:
    """By a name for each."""
    sparse = "data_shape=1000,4&sparse=true"
    found: dict[str, Callable[[], Ask]] = {
        "scatternd, JSON, strings": scatter_strings,
        "scatternd, v2, BYTES": scatter_v2_strings,
        "scatter_elements, v2, indices that are not aligned": scatter_v2_unaligned,
        "scatter_elements, explained": lambda: explained(scatter_binary("scatter_elements")),
        "scatter_elements, deflated": lambda: deflated(scatter_binary("scatter_elements")),
        "gathernd/backward, safetensors, tuples of three": backward_deep,
        "gathernd/backward, safetensors, far places": backward_far,
        "gathernd/backward, safetensors, uint8 indices": backward_narrow,
        "gather/backward, safetensors, filled": backward_filled,
        "gathernd/backward, safetensors, the last index out of bounds": backward_bad_index,
        "gather/backward, JSON, the shape of a resident tensor": backward_resident,
        "gathernd/backward, explained": lambda: explained(backward_binary("/gathernd/backward", sparse)),
        "gather/backward, deflated": lambda: deflated(backward_binary("/gather/backward", "data_shape=1000,4")),
        "gather/backward, in chunks": lambda: in_chunks(backward_binary("/gather/backward", sparse)),
        "lookup, safetensors, bags": lookup_binary,
        "lookup, safetensors, the last index out of bounds": lookup_bad_index,
        "lookup, safetensors, all offsets wrong": lookup_bad_offsets,
        "lookup, explained": lambda: explained(lookup_binary()),
        "lookup, deflated": lambda: deflated(lookup_binary()),
        "lookup, in chunks": lambda: in_chunks(lookup_json("values")),
        "lookup, v2": lambda: lookup_v2(True),
        "lookup, v2, JSON": lambda: lookup_v2(False),
    }
    for operator in ("scatternd", "scatter_elements"):
        found[f"{operator}, safetensors"] = partial(scatter_binary, operator)
        found[f"{operator}, JSON"] = partial(scatter_json, operator)
        found[f"{operator}, safetensors, the last index out of bounds"] = partial(scatter_bad_index, operator)
    for route in ("gathernd/backward", "gather/backward"):
        found[f"{route}, safetensors"] = partial(backward_binary, f"/{route}", "data_shape=1000,4")
        found[f"{route}, safetensors, sparse"] = partial(backward_binary, f"/{route}", sparse)
    for mode in ("clip", "wrap", "fill"):
        found[f"lookup, safetensors, {mode}"] = partial(lookup_replaced, mode)
    for encoding in ("values", "base64"):
        found[f"gathernd/backward, JSON to {encoding}"] = partial(backward_json, encoding)
        found[f"lookup, JSON to {encoding}"] = partial(lookup_json, encoding)
        found[f"lookup, a large answer in {encoding}"] = partial(lookup_large_answer, encoding)
        for concat in (False, True):
            name = f"lookup, strings to {encoding}{', joined' if concat else ''}"
            found[name] = partial(lookup_strings, concat, encoding)
    for concat in (False, True):
        found[f"lookup, safetensors, rows{', joined' if concat else ''}"] = partial(lookup_rows, concat)
    return found


CASES = cases()
