"""One request over both of the protocol's halves: the same bytes come back, or the same error at the same place."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.conftest import samples
from tests.grpc_api.conftest import GrpcServer
from tests.grpc_api.messages import FIELDS, Channel, output, request
from tests.oip import bodies
from tests.oip.bodies import NUMPY, Array
from tests.oip.test_infer import DATA
from tests.parity import gather_cases, lookup_cases, scatter_cases
from tests.parity.items import name_of
from tests.parity.messages import DATATYPES, Request, formats_of, infer_body, inferred, raw, resident

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


class Asked(NamedTuple):
    """A request to a model of the protocol."""

    model: str
    arrays: Mapping[str, Array]
    parameters: dict[str, Any]


def asked_at_random(kind: str, rng: np.random.Generator, held: Mapping[str, Array], *, spoiled: bool) -> Asked | None:
    """A request of `tests.parity`, None where the protocol has no way to say it or a type of it."""
    if kind == "lookups":
        lookup = lookup_cases.random_lookup(rng, held, spoiled=spoiled)
        text = json.dumps({"features": [each.members() for each in lookup.features], **lookup.parameters})
        found: Request = lookup
        asked = Asked("lookup", lookup.arrays, {"lookup": text})
    else:
        make = scatter_cases.random_scatter if kind == "scatters" else gather_cases.random_gather
        found = make(rng, spoiled=spoiled)
        given = {name: json.dumps(one) if name == "fill_value" else one for name, one in found.parameters.items()}
        asked = Asked(found.path[1:], found.arrays, given)
    said = all(type(one) in (bool, str) or -(2**63) <= one < 2**63 for one in asked.parameters.values())
    return asked if said and "protocol" in formats_of(found) else None


def told(answer: Mapping[str, Any]) -> Outcome:
    """What an error says but for its request_id."""
    return tuple(answer.get(name) for name in ("code", "detail", "errors", "total", "rule", "hint"))


def ask_over_http(client: httpx.Client, asked: Asked) -> Outcome:
    content, headers = infer_body(asked.arrays, asked.parameters, binary=True)
    answer = client.post(f"/v2/models/{asked.model}/infer", content=content, headers=headers)
    if answer.status_code != 200:
        return told(answer.json())
    arrays, document = inferred(answer)
    outputs = [(one["name"], one["datatype"], one["shape"], raw(arrays[one["name"]])) for one in document["outputs"]]
    return outputs, {name: one for name, one in document["parameters"].items() if name != "lookup"}


def ask_over_grpc(channel: Channel, asked: Asked) -> Outcome:
    arrays = {name: (DATATYPES[name_of(array)], array) for name, array in asked.arrays.items()}
    message = request(arrays, asked.model, parameters=asked.parameters)
    _, answer = channel.attempt("ModelInfer", message)
    if isinstance(answer, dict):
        return told(answer)
    outputs = [
        (one.name, one.datatype, list(one.shape), content)
        for one, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
    ]
    given = {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in answer.parameters.items()}
    return outputs, {name: one for name, one in given.items() if name != "lookup"}


@pytest.mark.parametrize("kind", ["gathers", "scatters", "lookups"])
def test_each_operator_answers_and_refuses_alike(channel: Channel, http: httpx.Client, kind: str) -> None:
    """Requests of every dialect, type, reduction and `out_of_bounds`, valid and not: the same bytes and errors."""
    rng, held = np.random.default_rng(25), lookup_cases.tables()
    seen: Counter[str] = Counter()
    with resident(http, held if kind == "lookups" else {}):
        for number in range(samples(800)):
            asked = asked_at_random(kind, rng, held, spoiled=number % 2 == 1)
            if asked is None:
                continue
            expected = ask_over_http(http, asked)
            assert ask_over_grpc(channel, asked) == expected, asked
            seen[expected[0] if isinstance(expected[0], str) else "answered"] += 1
    assert seen["answered"] > seen.total() / 3
    assert len(seen) >= 8, seen
