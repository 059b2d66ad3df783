"""The model `lookup` of the inference protocol: in JSON and in binary, by hand and by Triton's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.http.lookups import Given, looped
from tests.http.server import Server
from tests.http.tensors import RAW, put_raw

ITEMS = np.random.default_rng(2).standard_normal((20, 5), dtype=np.float32)
USERS = np.random.default_rng(3).standard_normal((20, 2), dtype=np.float32)
BAG = Given("v2_items", [4, 4, 9, 1, 0], [0, 3], pooling="sum")
ROWS = Given("v2_users", np.array([7, 3], np.int32))
INFER = "/v2/models/lookup/infer"
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}


@pytest.fixture(scope="module", autouse=True)
def tables(server: Server) -> Iterator[None]:
    client = server.shared_client()
    for name, table in (("v2_items", ITEMS), ("v2_users", USERS)):
        assert put_raw(client, name, table).status_code == 201
    yield
    for name in ("v2_items", "v2_users"):
        client.delete(f"/tensors/{name}")


def asked(features: list[Given], binary: bool = False, **more: Any) -> tuple[bytes, dict[str, str]]:
    """Body and header of a request; `more` are members of the request beside inputs and parameters, or of `lookup`."""
    inputs, blobs = [], []
    for number, given in enumerate(features):
        for name, array in given.arrays().items():
            told: dict[str, Any] = {
                "name": f"{number}.{name}", "datatype": DATATYPES[array.dtype.name], "shape": list(array.shape),
            }  # fmt: skip
            if binary:
                told["parameters"] = {"binary_data_size": array.nbytes}
                blobs.append(array.tobytes())
            else:
                told["data"] = array.ravel().tolist()
            inputs.append(told)
    own = {name: more.pop(name) for name in ("id", "outputs") if name in more}
    lookup = {"features": [given.fields() for given in features], **more}
    parameters = {"lookup": json.dumps(lookup), "binary_data_output": binary, "sequence_id": 3}
    text = json.dumps({"inputs": inputs, "parameters": parameters, **own}).encode()
    headers = {"inference-header-content-length": str(len(text))} if binary else {}
    return text + b"".join(blobs), headers


def infer(client: httpx.Client, features: list[Given], binary: bool = False, **more: Any) -> httpx.Response:
    content, headers = asked(features, binary, **more)
    return client.post(INFER, content=content, headers=headers)


def outputs_of(answer: httpx.Response) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of an answer, and its JSON."""
    size = answer.headers.get("inference-header-content-length")
    text = answer.content if size is None else answer.content[: int(size)]
    document, place = json.loads(text), len(text)
    found = {}
    for output in document["outputs"]:
        if "data" in output:
            array = np.array(output["data"], np.float32)
        else:
            end = place + output["parameters"]["binary_data_size"]
            array = np.frombuffer(answer.content[place:end], np.float32)
            place = end
        found[output["name"]] = array.reshape(output["shape"])
    assert place == len(answer.content)
    return found, document


def test_outputs_are_chosen_and_binary_one_by_one(client: httpx.Client) -> None:
    chosen = [{"name": "1.output", "parameters": {"binary_data": True}}, {"name": "0.output"}]
    found, document = outputs_of(infer(client, [ROWS, BAG], concat=False, outputs=chosen))
    assert list(found) == ["1.output", "0.output"]
    assert ["data" in output for output in document["outputs"]] == [False, True]
    assert found["1.output"].tobytes() == looped(ITEMS, BAG).tobytes()


def test_what_is_out_of_bounds_is_replaced_and_counted(client: httpx.Client) -> None:
    answer = infer(client, [Given("v2_items", [99, 1])], out_of_bounds="fill", fill_value=2)
    found, document = outputs_of(answer)
    assert found["output"].tolist() == [[2.0] * 5, ITEMS[1].tolist()]
    assert document["parameters"]["replaced"] == 1
    assert answer.headers["x-gathernd-replaced"] == "1"


def test_requests_that_are_none_are_refused(client: httpx.Client) -> None:
    one = {"name": "0.indices", "datatype": "INT64", "shape": [1], "data": [0]}
    good = {"lookup": json.dumps({"features": [{"tensor": "v2_items"}]})}
    for sent, code, pointer in (
        ({"inputs": [one]}, "invalid_field", "/parameters"),
        ({"inputs": [one], "parameters": {}}, "invalid_field", "/parameters/lookup"),
        ({"inputs": [one], "parameters": {"lookup": {"features": []}}}, "invalid_field", "/parameters/lookup"),
        ({"inputs": [one], "parameters": {"lookup": 3}}, "invalid_field", "/parameters/lookup"),
        ({"inputs": [one], "parameters": {"lookup": "{"}}, "invalid_field", "/parameters/lookup"),
        ({"inputs": [one], "parameters": {"lookup": "{}"}}, "invalid_field", "/parameters/lookup/features"),
        ({"inputs": [one, one], "parameters": good}, "invalid_field", "/inputs/1/name"),
        ({"inputs": [one | {"name": "indices"}], "parameters": good}, "invalid_field", "/inputs/0"),
        ({"inputs": [one | {"datatype": "INT63"}], "parameters": good}, "unsupported_dtype", "/inputs/0/datatype"),
        ({"inputs": [one | {"shape": [2]}], "parameters": good}, "element_count_mismatch", "/inputs/0/data"),
        ({"inputs": [one], "parameters": good, "outputs": [{"name": "0.output"}]}, "invalid_field", "/outputs/0/name"),
        ({"inputs": [one | {"data": [0.5]}], "parameters": good}, "value_not_representable", "/inputs/0/data/0"),
    ):
        found = client.post(INFER, json=sent).json()
        assert (found["code"], found["errors"][0]["pointer"]) == (code, pointer), found
    assert client.post(INFER, content=b"{").json()["code"] == "malformed_request"
    twice = b'{"inputs": [], "inputs": [], "parameters": {"lookup": "{}"}}'
    assert client.post(INFER, content=twice).json()["code"] == "malformed_request"
    raw = client.post(INFER, content=b"12345678", headers={"inference-header-content-length": "0"})
    assert raw.json()["code"] == "malformed_request"


@pytest.mark.parametrize(
    "foreign",
    [{"axis": 0}, {"batch_dims": 0}, {"reduction": "none"}, {"dialect": "onnx-13"}, {"device": "auto"},
     {"out_of_bounds": "clip"}, {"fill_value": "1"}],
)  # fmt: skip
def test_a_parameter_that_other_models_have_is_refused(foreign: dict[str, Any], client: httpx.Client) -> None:
    content, headers = asked([ROWS])
    document = json.loads(content)
    document["parameters"] |= foreign
    found = client.post(INFER, json=document, headers=headers).json()
    (name,) = foreign
    assert (found["code"], found["errors"][0]["pointer"]) == ("invalid_field", f"/parameters/{name}")
    if name in ("out_of_bounds", "fill_value"):  # the hint says where a lookup has it
        assert "'lookup', beside 'features'" in found["hint"]
        own: dict[str, Any] = {"out_of_bounds": "fill", "fill_value": 1.0}
        assert infer(client, [ROWS], **own).status_code == 200
    else:
        assert found["hint"].startswith(f"Leave out '{name}'")


def test_the_model_is_described_listed_and_counted(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/lookup").json()
    assert [one["name"] for one in metadata["inputs"]] == ["0.indices", "0.offsets", "0.weights"]
    assert [one["name"] for one in metadata["outputs"]] == ["output", "0.output"]
    assert client.get("/v2/models/lookup/config").json()["name"] == "lookup"
    assert client.get("/v2/models/lookup/ready").status_code == 200
    listed = client.post("/v2/repository/index", json={}).json()
    assert "lookup" in [one["name"] for one in listed]

    def count() -> int:
        (stats,) = client.get("/v2/models/lookup/stats").json()["model_stats"]
        found: int = stats["inference_stats"]["success"]["count"]
        return found

    before = count()
    assert infer(client, [BAG]).status_code == 200
    assert count() == before + 1


@pytest.mark.parametrize("binary", [False, True])
def test_triton_s_client_looks_up_as_it_is(binary: bool, server: Server) -> None:
    triton = pytest.importorskip("tritonclient.http")
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    inputs = []
    for name, array in BAG.arrays().items():
        one = triton.InferInput(f"0.{name}", list(array.shape), "INT64")
        one.set_data_from_numpy(array, binary_data=binary)
        inputs.append(one)
    parameters = {"lookup": json.dumps({"features": [BAG.fields()]})}
    outputs = [triton.InferRequestedOutput("output", binary_data=binary)]
    result = client.infer("lookup", inputs, outputs=outputs, parameters=parameters)
    assert result.as_numpy("output").tobytes() == looped(ITEMS, BAG).tobytes()
    client.close()


def test_an_object_in_place_of_its_text_is_called_that(client: httpx.Client) -> None:
    one = {"name": "0.indices", "datatype": "INT64", "shape": [1], "data": [0]}
    asked = {"features": [{"tensor": "v2_items"}]}
    sent: dict[str, Any] = {"inputs": [one], "parameters": {"lookup": asked}}
    found = client.post(INFER, json=sent).json()
    assert found["detail"] == "lookup must be a string, the JSON text of the request but for the arrays"
    assert "as a string" in found["hint"]
    sent["parameters"]["lookup"] = json.dumps(asked)
    assert client.post(INFER, json=sent).status_code == 200


def test_a_complex_tensor_is_refused_by_its_feature_with_the_route_that_has_it(client: httpx.Client) -> None:
    query = {"dtype": "complex64", "shape": "2,2"}
    client.put("/tensors/v2_complex", params=query, content=bytes(32), headers={"content-type": RAW})
    try:
        features = [ROWS, Given("v2_complex", [1, 0])]
        for binary in (False, True):
            found = infer(client, features, binary, concat=False).json()
            assert (found["code"], found["errors"]) == (
                "unsupported_dtype", [{"pointer": "/parameters/lookup/features/1/tensor"}],
            )  # fmt: skip
            assert "POST /lookup" in found["hint"]
    finally:
        client.delete("/tensors/v2_complex")
