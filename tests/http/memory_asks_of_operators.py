"""Scatters, gradients and lookups that make a service hold much, in every format (see `test_memory_budget`).

Tensors that are resident: `flat` (2^20 float64), `texts` (1,000 strings) and `table`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from tests.http.lookups import Given, as_json, as_safetensors, loaded
from tests.http.memory_asks import BINARY, MIB, Ask, json_call, ordered, texts
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


def lookup_bad_offsets() -> Ask:
    """Every offset but the first is beyond the indices."""
    offsets = np.full(8 * MIB, 9, np.int32)
    offsets[0] = 0
    given = Given("flat", np.zeros(3, np.int32), offsets, pooling="mean")
    return Ask("/lookup", as_safetensors([given]), (BINARY,), lambda _: False, ("offsets_invalid",))


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


def cases() -> dict[str, Callable[[], Ask]]:
    """By a name for each. What reading takes in each format is held by tests/wire/test_body_memory.py."""
    sparse = "data_shape=1000,4&sparse=true"
    found: dict[str, Callable[[], Ask]] = {
        "scatternd, JSON, strings": scatter_strings,
        "gathernd/backward, safetensors, tuples of three": backward_deep,
        "gathernd/backward, safetensors, far places": backward_far,
        "gather/backward, safetensors, filled": backward_filled,
        "lookup, safetensors, bags": lookup_binary,
        "lookup, safetensors, all offsets wrong": lookup_bad_offsets,
        "lookup, safetensors, clip": lambda: lookup_replaced("clip"),
        "lookup, safetensors, fill": lambda: lookup_replaced("fill"),
        "lookup, safetensors, rows": lambda: lookup_rows(concat=False),
        "lookup, safetensors, rows, joined": lambda: lookup_rows(concat=True),
        "lookup, a large answer in values": lambda: lookup_large_answer("values"),
        "lookup, a large answer in base64": lambda: lookup_large_answer("base64"),
        "lookup, strings": lambda: lookup_strings(concat=False),
        "lookup, strings, joined": lambda: lookup_strings(concat=True),
    }
    for operator in ("scatternd", "scatter_elements"):
        found[f"{operator}, safetensors"] = partial(scatter_binary, operator)
        found[f"{operator}, safetensors, the last index out of bounds"] = partial(scatter_bad_index, operator)
    for route in ("gathernd/backward", "gather/backward"):
        found[f"{route}, safetensors"] = partial(backward_binary, f"/{route}", "data_shape=1000,4")
        found[f"{route}, safetensors, sparse"] = partial(backward_binary, f"/{route}", sparse)
    return found


CASES = cases()
