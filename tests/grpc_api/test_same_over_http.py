"""One request over both of the protocol's halves: the same bytes come back, or the same error at the same place."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.conftest import samples
from tests.grpc_api.conftest import GrpcServer
from tests.grpc_api.messages import FIELDS, Channel, output, request
from tests.oip import bodies
from tests.oip.bodies import NUMPY, Array
from tests.oip.test_infer import DATA

MODELS = ("gathernd", "gather", "gather_elements", "scatternd", "scatter_elements", "table", "nothing")
Arrays = dict[str, tuple[str, Array]]
Outcome = tuple[Any, ...]


@pytest.fixture(scope="module")
def channel(grpc_server: GrpcServer) -> Iterator[Channel]:
    with Channel(grpc_server.address) as made:
        yield made


@pytest.fixture(scope="module")
def http(grpc_server: GrpcServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=grpc_server.http.url, trust_env=False, timeout=60) as client:
        headers = {"content-type": "application/octet-stream"}
        content = np.arange(24, dtype=np.int16).tobytes()
        client.put("/tensors/table?dtype=int16&shape=6,4", content=content, headers=headers).raise_for_status()
        yield client


def made(rng: random.Random) -> tuple[str, Arrays, dict[str, Any]]:
    """A model, inputs and parameters that are mostly right, and wrong in one or two ways otherwise."""
    model = rng.choice(MODELS)
    datatype = rng.choice(list(NUMPY))
    shape = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]
    data = np.resize(DATA[datatype].reshape(-1), shape)
    depth = rng.randrange(1, len(shape) + 1) if rng.random() < 0.9 else len(shape) + 1
    rank = rng.randrange(1, 3)
    low, high = (-shape[0], shape[0]) if rng.random() < 0.8 else (-5, 5)
    chooser = np.random.default_rng(rng.randrange(1 << 30))
    if model.endswith("elements"):
        indices = chooser.integers(low, high, shape)
    elif model == "gather":
        indices = chooser.integers(low, high, [2] * rank)
    else:
        indices = chooser.integers(-1, 1, [2] * (rank - 1) + [depth]) if rng.random() < 0.8 else chooser.integers(
            low, high, [2] * (rank - 1) + [depth]
        )  # fmt: skip
    kind = rng.choice(["INT64", "INT64", "INT64", "INT32", "FP32"])
    arrays: Arrays = {"indices": (kind, indices.astype(NUMPY[kind]))}
    if model != "table":
        arrays = {"data": (datatype, data), **arrays}
    if model.startswith("scatter"):
        updates = [*indices.shape[:-1], *shape[depth:]] if model == "scatternd" else list(indices.shape)
        arrays["updates"] = (datatype, np.resize(DATA[datatype].reshape(-1), updates))
    if rng.random() < 0.1:
        del arrays[rng.choice(list(arrays))]
    options: dict[str, Any] = {
        "batch_dims": rng.randrange(-1, 2), "axis": rng.randrange(-3, 3), "reduction": rng.choice(["none", "add", "x"]),
        "out_of_bounds": rng.choice(["clip", "wrap", "fill", "error"]), "dialect": rng.choice(["onnx-13", "onnx-12"]),
        "device": rng.choice(["cpu", "gpu"]), "fill_value": "1", "timeout": 5_000_000, "unknown": 1,
    }  # fmt: skip
    chosen = rng.sample(list(options), rng.choice((0, 0, 1, 1, 2)))
    return model, arrays, {name: options[name] for name in chosen}


def over_http(client: httpx.Client, model: str, arrays: Arrays, parameters: dict[str, Any]) -> Outcome:
    parts = [bodies.part(name, array, kind, binary=True) for name, (kind, array) in arrays.items()]
    content, headers = bodies.request(parts, parameters={**parameters, "binary_data_output": True})
    answer = client.post(f"/v2/models/{model}/infer", content=content, headers=headers)
    if answer.status_code != 200:
        return outcome(answer.json())
    body, array = bodies.output(answer)
    return "ok", body["outputs"][0]["datatype"], array.shape, bodies.octets(array), body["parameters"]["dialect"]


def over_grpc(channel: Channel, model: str, arrays: Arrays, parameters: dict[str, Any], *, typed: bool) -> Outcome:
    message = request(arrays, model, typed=typed, parameters=parameters)
    _, answer = channel.attempt("ModelInfer", message)
    if isinstance(answer, dict):
        return outcome(answer)
    kind = answer.outputs[0].datatype
    array = output(answer, NUMPY[kind])
    return "ok", kind, array.shape, bodies.octets(array), answer.parameters["dialect"].string_param


def outcome(problem: dict[str, Any]) -> Outcome:
    """Code, text and places of an error."""
    return problem["code"], problem["detail"], problem.get("total"), problem.get("errors")


def test_raw_items_and_binary_bodies(channel: Channel, http: httpx.Client) -> None:
    rng = random.Random(23)
    seen: dict[str, int] = {}
    for _ in range(samples(800)):
        model, arrays, parameters = made(rng)
        expected = over_http(http, model, arrays, parameters)
        assert over_grpc(channel, model, arrays, parameters, typed=False) == expected, (model, arrays, parameters)
        seen[expected[0]] = seen.get(expected[0], 0) + 1
    assert seen["ok"] > 40
    assert len(seen) >= 8, seen


def test_items_in_contents_and_binary_bodies(channel: Channel, http: httpx.Client) -> None:
    rng = random.Random(24)
    answered = 0
    for _ in range(samples(400)):
        model, arrays, parameters = made(rng)
        if any(kind not in FIELDS for kind, _ in arrays.values()):
            continue
        expected = over_http(http, model, arrays, parameters)
        found = over_grpc(channel, model, arrays, parameters, typed=True)
        # Places are within `contents` here, and within the items' bytes as a whole there.
        assert found == expected if expected[0] == "ok" else found[0] == expected[0], (model, arrays, parameters)
        answered += expected[0] == "ok"
    assert answered > 10
