"""The same requests to ONNX's reference evaluator and to ONNX Runtime: where they take one, the answers are the same.

They are peers and not judges: what they are known to answer wrongly, or to take though the text forbids it, is listed
here with the reason, and is checked to be still so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.conftest import samples
from tests.http.forms import COMPLEX, int64, octets, same, tensor
from tests.http.rules import broken
from tests.http.test_properties import requests

ort = pytest.importorskip("onnxruntime")
NODES = {"/gathernd": "GatherND", "/gather": "Gather", "/gather_elements": "GatherElements"}
OPSETS = {"onnx-13": 13, "onnx-12": 12, "onnx-11": 11, "onnx-1": 10}
EXAMPLES = settings(max_examples=samples(200), suppress_health_check=list(HealthCheck))
_NUMPY = {"bool": "?", "string": object, "bfloat16": ml_dtypes.bfloat16, "complex64": "<c8", "complex128": "<c16"}


def array(given: dict[str, Any]) -> np.ndarray:
    dtype, shape = given["dtype"], given["shape"]
    if dtype == "string":
        made = np.empty(len(given["values"]), object)
        made[:] = given["values"]
        return made.reshape(shape)
    return np.frombuffer(octets(dtype, given["values"]), _NUMPY.get(dtype, dtype)).reshape(shape).copy()


def values(made: Any, dtype: str) -> list[Any]:
    flat: np.ndarray = np.asarray(made).reshape(-1)
    if dtype in COMPLEX:
        return [[number.real, number.imag] for number in flat.tolist()]
    plain = flat.astype(np.float64) if dtype in ("bfloat16", "float16") else flat
    return list(plain.tolist())


def model(path: str, body: dict[str, Any]) -> onnx.ModelProto:
    kinds = [getattr(TensorProto, _onnx_name(body[role]["dtype"])) for role in ("data", "indices")]
    attributes = {name: body[name] for name in ("batch_dims", "axis") if name in body}
    dialect = body.get("dialect", "onnx-13")
    if dialect == "onnx-11":
        attributes.pop("batch_dims", None)
    node = helper.make_node(NODES[path], ["data", "indices"], ["output"], **attributes)
    shapes = [body[role]["shape"] for role in ("data", "indices")]
    graph = helper.make_graph(
        [node],
        "gather",
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in zip(("data", "indices"), kinds, shapes, strict=True)
        ],
        [helper.make_tensor_value_info("output", kinds[0], None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS[dialect])], ir_version=7)


def _onnx_name(dtype: str) -> str:
    return {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())


def by_reference(path: str, body: dict[str, Any]) -> Any:
    made: Any = ReferenceEvaluator(model(path, body)).run(None, _feeds(body))
    return made[0]


def by_runtime(path: str, body: dict[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model(path, body).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, _feeds(body))[0]


def _feeds(body: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: array(body[name]) for name in ("data", "indices")}


def agrees(made: Any, answer: httpx.Response) -> bool:
    output = answer.json()["output"]
    return list(np.shape(made)) == output["shape"] and same(
        output["dtype"], values(made, output["dtype"]), output["values"]
    )


PEERS: dict[str, Callable[[str, dict[str, Any]], Any]] = {"reference": by_reference, "runtime": by_runtime}


def known_to_differ(peer: str, path: str, body: dict[str, Any]) -> bool:
    """Valid requests that a peer cannot take, or answers wrongly."""
    if peer == "runtime":
        # It has no kernels for these types; and its Gather copies the first string of each slice only.
        return body["data"]["dtype"] in {"bfloat16", *COMPLEX, *(["string"] if path == "/gather" else [])}
    if path == "/gather_elements":
        # It wants indices of data's size on every other axis, and takes a negative axis for another one.
        axis = body.get("axis", 0)
        sizes = zip(body["data"]["shape"], body["indices"]["shape"], strict=True)
        return axis < 0 or any(size != given for at, (size, given) in enumerate(sizes) if at != axis)
    if path == "/gather" and body["data"]["dtype"] == "string" and len(body["data"]["shape"]) == 1:
        # One string by itself becomes an array of characters, which ends before the NULs at its end.
        return body["indices"]["shape"] == [] and any(value.endswith("\0") for value in body["data"]["values"])
    # It reshapes with one dimension left open, which NumPy cannot work out for arrays without items.
    return path == "/gathernd" and 0 in (*body["data"]["shape"], *body["indices"]["shape"])


@pytest.mark.parametrize("peer", PEERS)
def test_a_valid_request_is_answered_as_the_peer_answers_it(client: httpx.Client, peer: str) -> None:
    compared = 0

    def is_compared(request: tuple[str, dict[str, Any]]) -> bool:
        path, body = request
        return not (body.get("dialect") == "openvino-8" or broken(path, body) or known_to_differ(peer, path, body))

    @EXAMPLES
    @given(requests().filter(is_compared))
    def compare(request: tuple[str, dict[str, Any]]) -> None:
        nonlocal compared
        path, body = request
        answer = client.post(path, content=json.dumps(body))
        assert answer.status_code == 200, answer.text
        assert agrees(PEERS[peer](path, body), answer), (path, body, answer.text)
        compared += 1

    compare()
    assert compared >= samples(200)


def test_the_runtime_still_loses_strings(client: httpx.Client) -> None:
    body = {"data": tensor("string", [1, 2], ["a", "b"]), "indices": int64([1], [0])}
    assert client.post("/gather", json=body).json()["output"]["values"] == ["a", "b"]
    assert by_runtime("/gather", body).tolist() == [["a", ""]]


def test_the_reference_still_loses_nuls_at_the_end_of_a_string(client: httpx.Client) -> None:
    body = {"data": tensor("string", [1], ["a\0"]), "indices": int64([], [0])}
    assert client.post("/gather", json=body).json()["output"]["values"] == ["a\0"]
    assert by_reference("/gather", body).tolist() == "a"


def floats(*shape: int) -> dict[str, Any]:
    return tensor("float32", shape, [float(number) for number in range(prod(shape))])


BOTH, NEITHER = frozenset(PEERS), frozenset[str]()
RUNTIME, REFERENCE = frozenset({"runtime"}), frozenset({"reference"})
# Forbidden requests: path, body, the code of the service, and the peers that take them all the same.
FORBIDDEN: dict[str, tuple[str, dict[str, Any], str, frozenset[str]]] = {
    "batch dims that differ but divide": (
        "/gathernd",
        {"data": floats(2, 3), "indices": int64([4, 1], [0, 1, 2, 0]), "batch_dims": 1},
        "batch_shape_mismatch",
        RUNTIME,
    ),
    "batch one against three": (
        "/gathernd",
        {"data": floats(1, 3), "indices": int64([3, 1], [0, 1, 2]), "batch_dims": 1},
        "batch_shape_mismatch",
        RUNTIME,
    ),
    "batch three against one": (
        "/gathernd",
        {"data": floats(3, 3), "indices": int64([1, 1], [0]), "batch_dims": 1},
        "batch_shape_mismatch",
        NEITHER,
    ),
    "a negative batch_dims": (
        "/gathernd",
        {"data": floats(2, 2, 2), "indices": int64([2, 1], [1, 0]), "batch_dims": -1},
        "batch_dims_out_of_range",
        NEITHER,
    ),
    "index tuples of length zero": (
        "/gathernd",
        {"data": floats(2, 2), "indices": int64([3, 0], [])},
        "index_depth_out_of_range",
        RUNTIME,
    ),
    "an inner index out of range": (
        "/gathernd",
        {"data": floats(3, 4), "indices": int64([1, 2], [0, 5])},
        "index_out_of_bounds",
        NEITHER,
    ),
    "an index whose product with the stride wraps": (
        "/gathernd",
        {"data": floats(3, 4), "indices": int64([1, 2], [2**62, 1])},
        "index_out_of_bounds",
        NEITHER,
    ),
    "an index into an empty axis": (
        "/gathernd",
        {"data": floats(0), "indices": int64([1, 1], [0])},
        "index_out_of_bounds",
        NEITHER,
    ),
    "an index into an empty axis where the output is empty": (
        "/gathernd",
        {"data": floats(2, 0, 0), "indices": int64([1, 2], [0, 0])},
        "index_out_of_bounds",
        RUNTIME,
    ),
    "a bad index to empty slices": (
        "/gathernd",
        {"data": floats(2, 3, 0), "indices": int64([1, 1], [2])},
        "index_out_of_bounds",
        RUNTIME,
    ),
    "a bad index before an empty axis": (
        "/gather",
        {"data": floats(0, 3), "indices": int64([1], [3]), "axis": 1},
        "index_out_of_bounds",
        REFERENCE,
    ),
    "an axis of 2^32": (
        "/gather",
        {"data": floats(2, 3), "indices": int64([1], [1]), "axis": 2**32},
        "axis_out_of_range",
        NEITHER,
    ),
    "a negative index under Gather-1": (
        "/gather",
        {"data": floats(3), "indices": int64([1], [-1]), "dialect": "onnx-1"},
        "index_out_of_bounds",
        BOTH,
    ),
    "indices of rank 0": (
        "/gathernd",
        {"data": floats(3), "indices": int64([], [1])},
        "rank_too_small",
        NEITHER,
    ),
    "entries of another rank": (
        "/gather_elements",
        {"data": floats(2, 3), "indices": int64([2], [0, 1])},
        "rank_mismatch",
        NEITHER,
    ),
    "entries at places that data has not": (
        "/gather_elements",
        {"data": floats(2, 3), "indices": int64([3, 1], [0, 1, 2]), "axis": 1},
        "indices_shape_mismatch",
        NEITHER,
    ),
    "an entry out of range": (
        "/gather_elements",
        {"data": floats(2, 3), "indices": int64([1, 3], [0, 2, 0])},
        "index_out_of_bounds",
        REFERENCE,
    ),
    "an entry of an empty axis": (
        "/gather_elements",
        {"data": floats(2, 0), "indices": int64([2, 1], [0, 0]), "axis": 1},
        "index_out_of_bounds",
        NEITHER,
    ),
    "bfloat16 before 13": (
        "/gathernd",
        {"data": tensor("bfloat16", [2], [1, 2]), "indices": int64([1, 1], [1]), "dialect": "onnx-12"},
        "unsupported_dtype",
        REFERENCE,
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_the_text_forbids_is_refused_also_where_a_peer_takes_it(client: httpx.Client, name: str) -> None:
    path, body, code, takers = FORBIDDEN[name]
    assert client.post(path, json=body).json()["code"] == code
    for peer, ask in PEERS.items():
        try:
            ask(path, body)
        except Exception:  # noqa: BLE001  (peers refuse with whatever their own code happens to raise)
            assert peer not in takers
        else:
            assert peer in takers
