"""`POST /scatternd`, `/scatter_elements` and their models: known answers in each format, resident data, refusals."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import load, save

from app.tensors.dtypes import DTYPES
from app.tensors.scatter_call import REDUCTIONS
from tests.conftest import samples
from tests.for_each import for_each
from tests.http.forms import int64, items, nested, octets, packed, tensor
from tests.http.tensors import RAW, error, npy, put_raw, scatter_body
from tests.kernels import scatter_loops
from tests.oip.bodies import output, part, request

ND, ELEMENTS = "/scatternd", "/scatter_elements"
SAFETENSORS = {"content-type": "application/x-safetensors"}
CUBE = [1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1]
# The examples of the ONNX texts, and what their formulas give for each reduction.
KNOWN: list[tuple[str, dict[str, Any], list[float]]] = [
    (
        ND,
        {
            "data": tensor("int32", [8], [1, 2, 3, 4, 5, 6, 7, 8]),
            "indices": int64([4, 1], [4, 3, 1, 7]),
            "updates": tensor("int32", [4], [9, 10, 11, 12]),
        },
        [1, 11, 3, 10, 9, 6, 7, 12],
    ),
    (
        ND,
        {
            "data": tensor("float32", [4, 4, 4], [*CUBE, *CUBE, *CUBE[8:], *CUBE[:8], *CUBE[8:], *CUBE[:8]]),
            "indices": int64([2, 1], [0, 2]),
            "updates": tensor(
                "float32",
                [2, 4, 4],
                [value for row in (5, 6, 7, 8, 1, 2, 3, 4) for value in [row] * 4],
            ),
        },
        [
            *(value for row in (5, 6, 7, 8) for value in [row] * 4),
            *CUBE,
            *(value for row in (1, 2, 3, 4) for value in [row] * 4),
            *CUBE[8:],
            *CUBE[:8],
        ],
    ),
    (
        ND,
        {
            "data": tensor("int32", [2, 2], [1, 2, 3, 4]),
            "indices": int64([3, 2], [0, 1, -1, -1, 0, 1]),
            "updates": tensor("int32", [3], [10, 20, 30]),
            "reduction": "add",
        },
        [1, 42, 3, 24],
    ),
    (
        ND,
        {
            "data": tensor("int32", [2, 2], [1, 2, 3, 4]),
            "indices": int64([2, 1], [1, 1]),
            "updates": tensor("int32", [2, 2], [2, 3, 5, 7]),
            "reduction": "mul",
        },
        [1, 2, 30, 84],
    ),
    (
        ND,
        {
            "data": tensor("float32", [3], [1, 5, 3]),
            "indices": int64([3, 1], [0, 1, 1]),
            "updates": tensor("float32", [3], [-1, 4, 9]),
            "reduction": "min",
        },
        [-1, 4, 3],
    ),
    (
        ELEMENTS,
        {
            "data": tensor("float32", [3, 3], [0] * 9),
            "indices": int64([2, 3], [1, 0, 2, 0, 2, 1]),
            "updates": tensor("float32", [2, 3], [1, 1.5, 2, 2.5, 3, 3.5]),
        },
        [2.5, 1.5, 0, 1, 0, 3.5, 0, 3, 2],
    ),
    (
        ELEMENTS,
        {
            "data": tensor("float32", [1, 5], [1, 2, 3, 4, 5]),
            "indices": int64([1, 2], [1, -2]),
            "updates": tensor("float32", [1, 2], [1.5, 2.5]),
            "axis": 1,
        },
        [1, 1.5, 3, 2.5, 5],
    ),
    (
        ELEMENTS,
        {
            "data": tensor("float32", [1, 5], [1, 2, 3, 4, 5]),
            "indices": int64([1, 2], [1, 1]),
            "updates": tensor("float32", [1, 2], [1.5, 2.5]),
            "axis": -1,
            "reduction": "max",
        },
        [1, 2.5, 3, 4, 5],
    ),
]
KINDS = {"int32": "INT32", "float32": "FP32"}


def array(given: dict[str, Any]) -> Any:
    return np.array(given["values"], given["dtype"]).reshape(given["shape"])


def parameters(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("data", "indices", "updates")}


@pytest.mark.parametrize(("path", "body", "expected"), KNOWN)
class TestKnownAnswers:
    @for_each("form", [dict, nested, packed])
    @for_each("encoding", ["values", "base64"])
    def test_in_json(
        self, client: httpx.Client, path: str, body: dict[str, Any], expected: list[float], form: Any, encoding: str
    ) -> None:
        sent = body | {name: form(body[name]) for name in ("data", "indices", "updates")}
        answer = client.post(path, json=sent | {"output_encoding": encoding})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found.keys() == {"output", "dialect", "device"}
        assert (found["dialect"], found["device"]) == ("onnx-18", "cpu")
        assert (found["output"]["dtype"], found["output"]["shape"]) == (body["data"]["dtype"], body["data"]["shape"])
        assert items(found["output"]) == expected

    def test_in_safetensors(self, client: httpx.Client, path: str, body: dict[str, Any], expected: list[float]) -> None:
        content = save({name: array(body[name]) for name in ("data", "indices", "updates")})
        answer = client.post(path, params=parameters(body), content=content, headers=SAFETENSORS)
        assert answer.status_code == 200, answer.text
        assert (answer.headers["x-gathernd-dialect"], answer.headers["x-gathernd-device"]) == ("onnx-18", "cpu")
        found = load(answer.content)["output"]
        assert (found.dtype, list(found.shape)) == (body["data"]["dtype"], body["data"]["shape"])
        assert found.reshape(-1).tolist() == expected

    @pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
    def test_by_the_inference_protocol(
        self, client: httpx.Client, path: str, body: dict[str, Any], expected: list[float], binary: bool
    ) -> None:
        kind = KINDS[body["data"]["dtype"]]
        content, headers = request(
            [
                part("updates", array(body["updates"]), kind, binary=binary),  # in any order
                part("data", array(body["data"]), kind, binary=binary),
                part("indices", array(body["indices"]), "INT64", binary=binary),
            ],
            parameters=parameters(body) | {"binary_data_output": binary},
        )
        described, found = output(client.post(f"/v2/models{path}/infer", content=content, headers=headers))
        assert described["model_name"] == path[1:]
        assert list(found.shape) == body["data"]["shape"]
        assert found.reshape(-1).tolist() == expected

    def test_into_a_copy_of_a_resident_tensor(
        self, client: httpx.Client, path: str, body: dict[str, Any], expected: list[float]
    ) -> None:
        etag = client.put("/tensors/scattered", content=npy(array(body["data"]))).headers["etag"]
        try:
            answer = client.post(path, json=body | {"data": {"tensor": "scattered"}})
            assert (answer.status_code, answer.json()["data_etag"]) == (200, etag)
            assert answer.json()["output"]["values"] == expected
            content = save({name: array(body[name]) for name in ("indices", "updates")})
            query = parameters(body) | {"tensor": "scattered"}
            answer = client.post(path, params=query, content=content, headers=SAFETENSORS)
            assert answer.headers["x-gathernd-data-etag"] == etag
            assert load(answer.content)["output"].reshape(-1).tolist() == expected
            assert client.get("/tensors/scattered").json()["etag"] == etag
            kept = client.get("/tensors/scattered/content", headers={"accept": "application/octet-stream"})
            assert kept.content == array(body["data"]).tobytes()
        finally:
            client.delete("/tensors/scattered")


def nd_body(**more: Any) -> dict[str, Any]:
    return {
        "data": tensor("float32", [3, 2], [1, 2, 3, 4, 5, 6]),
        "indices": int64([2, 1], [0, 2]),
        "updates": tensor("float32", [2, 2], [7, 8, 9, 10]),
    } | more


def elements_body(**more: Any) -> dict[str, Any]:
    return nd_body(indices=int64([2, 2], [0, 2, 1, 0])) | more


@settings(max_examples=samples(200), deadline=None)
@given(st.data())
def test_answers_are_those_of_onnx(server: Any, data: st.DataObject) -> None:
    """ONNX's ReferenceEvaluator, for random shapes. Its min and max of ScatterElements are Python's: no NaN here."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = data.draw(st.sampled_from(["float32", "float64", "float16", "int8", "int64", "uint16"]))
    reduction = data.draw(st.sampled_from(REDUCTIONS))
    shape = tuple(rng.integers(1, 5, rng.integers(1, 4)).tolist())
    whole = bool(rng.integers(2))
    axis = int(rng.integers(-len(shape), len(shape)))
    if whole:
        depth = int(rng.integers(1, len(shape) + 1))
        count = int(rng.integers(0, 6))
        indices = np.stack([rng.integers(-size, size, count) for size in shape[:depth]], -1)
        if reduction == "none":  # the text wants them different
            _, firsts = np.unique(indices % shape[:depth], axis=0, return_index=True)
            indices = indices[np.sort(firsts)]
        updates_shape = (len(indices), *shape[depth:])
    else:
        updates_shape = tuple(
            int(rng.integers(1, 7 if at == axis % len(shape) else size + 1)) for at, size in enumerate(shape)
        )
        size = shape[axis]
        indices = rng.integers(-size, size, updates_shape)
        if reduction == "none":
            updates_shape = tuple(min(each) for each in zip(updates_shape, shape, strict=True))
            order = np.argsort(rng.random(shape), axis=axis)
            indices = order[tuple(slice(each) for each in updates_shape)]
    values, updates = (
        rng.integers(-9 if dtype[0] != "u" else 0, 9, each).astype(dtype) for each in (shape, updates_shape)
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    attributes: dict[str, Any] = {"reduction": reduction} | ({} if whole else {"axis": axis})
    names = ["data", "indices", "updates"]
    node = helper.make_node("ScatterND" if whole else "ScatterElements", names, ["output"], **attributes)
    kinds = [kind, TensorProto.INT64, kind]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, each, None) for name, each in zip(names, kinds, strict=True)],
        [helper.make_tensor_value_info("output", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with np.errstate(over="ignore"):  # the evaluator computes float16 by NumPy, which warns
        (expected,) = ReferenceEvaluator(model).run(None, {"data": values, "indices": indices, "updates": updates})
    content = save({"data": values, "indices": np.ascontiguousarray(indices), "updates": updates})
    path = ND if whole else ELEMENTS
    answer = server.shared_client().post(path, params=attributes, content=content, headers=SAFETENSORS)
    assert answer.status_code == 200, answer.text
    assert np.array_equal(load(answer.content)["output"], expected)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in ("string", "bfloat16", "complex128")])
def test_large_scatters_of_every_type(client: httpx.Client, dtype: str) -> None:
    """More than a thread of the pool takes, on every route: the bits of a plain loop."""
    rng = np.random.default_rng(2)
    kind = DTYPES[dtype].numpy
    data, updates = rng.integers(0, 2, (3000, 40)).astype(kind), rng.integers(0, 2, (4000, 40)).astype(kind)
    indices = rng.integers(-3000, 3000, (4000, 1))
    expected = data.copy()
    for (row,), update in zip(indices.tolist(), updates, strict=True):
        expected[row] = update
    content = save({"data": data, "indices": indices, "updates": updates})
    answer = client.post(ND, content=content, headers=SAFETENSORS)
    assert load(answer.content)["output"].tobytes() == expected.tobytes()
    if DTYPES[dtype].kind in ("int", "uint", "float"):
        columns = rng.integers(0, 40, (3000, 50))
        more = rng.integers(0, 3, (3000, 50)).astype(kind)
        expected = data.copy()
        for column in range(50):
            expected[np.arange(3000), columns[:, column]] += more[:, column]
        content = save({"data": data, "indices": columns, "updates": more})
        answer = client.post(ELEMENTS, params={"axis": 1, "reduction": "add"}, content=content, headers=SAFETENSORS)
        assert load(answer.content)["output"].tobytes() == expected.tobytes()


def test_the_last_of_several_updates_wins_and_negative_zero_is_kept(client: httpx.Client) -> None:
    body = nd_body(indices=int64([2, 1], [1, -2]), updates=tensor("float32", [2, 2], [7, 8, -0.0, 9]))
    values = client.post(ND, json=body).json()["output"]["values"]
    assert values == [1, 2, -0.0, 9, 5, 6]
    assert str(values[2]) == "-0.0"


def test_bfloat16_is_rounded_at_each_step(client: httpx.Client) -> None:
    body = {
        "data": tensor("bfloat16", [1], [256]),
        "indices": int64([3, 1], [0, 0, 0]),
        "updates": tensor("bfloat16", [3], [1, 1, 1]),
        "reduction": "add",
    }
    assert client.post(ND, json=body).json()["output"]["values"] == [256.0]  # 257 is halfway to 258, and 256 is even


@pytest.mark.parametrize("resident", [False, True])
def test_strings_are_replaced(client: httpx.Client, resident: bool) -> None:
    words = ["a", "", "ccc", "dé", "日本", "f"]
    body = {
        "data": tensor("string", [3, 2], words),
        "indices": int64([2, 1], [1, 1]),
        "updates": tensor("string", [2, 2], ["x", "y", "", "zz\0"]),
    }
    if resident:
        content = octets("string", words)
        query = {"dtype": "string", "shape": "3,2"}
        client.put("/tensors/words", params=query, content=content, headers={"content-type": RAW})
        body["data"] = {"tensor": "words"}
    try:
        found = client.post(ND, json=body).json()["output"]
        assert found == {"dtype": "string", "shape": [3, 2], "values": ["a", "", "", "zz\0", "日本", "f"]}
        elements = body | {"indices": int64([1, 2], [2, 0]), "updates": tensor("string", [1, 2], ["é", "w"])}
        assert client.post(ELEMENTS, json=elements).json()["output"]["values"] == ["a", "w", "ccc", "dé", "é", "f"]
        refused = client.post(ND, json=body | {"reduction": "add"})
        error(refused, 422, "unsupported_dtype")
    finally:
        client.delete("/tensors/words")


@pytest.mark.parametrize("path", [ND, ELEMENTS])
@pytest.mark.parametrize(
    ("dialect", "taken"), [("onnx-18", 5), ("onnx-16", 3), ("onnx-13", 1), ("onnx-11", 1)], ids=str
)
def test_a_dialect_has_its_reductions(client: httpx.Client, path: str, dialect: str, taken: int) -> None:
    body = (nd_body if path == ND else elements_body)(dialect=dialect)
    for number, reduction in enumerate(REDUCTIONS):
        answer = client.post(path, json=body | {"reduction": reduction})
        content = save({name: array(body[name]) for name in ("data", "indices", "updates")})
        query = {"dialect": dialect, "reduction": reduction}
        binary = client.post(path, params=query, content=content, headers=SAFETENSORS)
        assert answer.status_code == binary.status_code == (200 if number < taken else 422)
        if number >= taken:
            for refused, pointer in ((answer, "/reduction"), (binary, "/query/reduction")):
                assert refused.json()["code"] == "invalid_field"
                assert refused.json()["errors"] == [{"pointer": pointer}]
                assert "'onnx-1" in refused.json()["hint"]


@pytest.mark.parametrize(
    ("path", "opset", "meant"),
    [
        (ND, 17, "onnx-16"), (ND, 21, "onnx-18"), (ND, 12, "onnx-11"), (ELEMENTS, 15, "onnx-13"),
        ("/gathernd", 21, "onnx-13"), ("/gather", 12, "onnx-11"), ("/gather", 14, "onnx-13"), ("/gather", 5, "onnx-1"),
        ("/gather_elements", 12, "onnx-11"), ("/gather/backward", 12, "onnx-11"),
    ],
)  # fmt: skip
def test_an_opset_that_is_no_dialect_is_told_the_version_that_it_has(
    client: httpx.Client, path: str, opset: int, meant: str
) -> None:
    """Not the dialect that looks most like it, whose rules may be others."""
    body = nd_body(dialect=f"onnx-{opset}")
    if "scatter" not in path:
        del body["updates"]
    if "backward" in path:
        body |= {"grad_output": body.pop("data"), "data_shape": [3, 2]}
    found = error(client.post(path, json=body), 422, "invalid_field", "/dialect")
    assert found["hint"].startswith(f"Write '{meant}' in place of 'onnx-{opset}' at /dialect")


BAD_ND: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("unsupported_dtype", {"updates": tensor("float64", [2, 2], [7, 8, 9, 10])}, "/updates/dtype", {}),
    ("unsupported_dtype", {"indices": tensor("int32", [2, 1], [0, 2])}, "/indices/dtype", {}),
    ("unsupported_dtype", {"updates": tensor("float23", [2, 2], [7, 8, 9, 10])}, "/updates/dtype", {}),
    ("updates_shape_mismatch", {"updates": tensor("float32", [4], [7, 8, 9, 10])}, "/updates/shape", {}),
    ("element_count_mismatch", {"updates": tensor("float32", [2, 2], [7, 8, 9])}, "/updates/values", {}),
    (
        "value_not_representable",
        {"updates": tensor("float32", [2, 2], [7, 8, 9, 1e39])},
        "/updates/values/3",
        {"position": [1, 1]},
    ),
    (
        "index_out_of_bounds",
        {"indices": int64([2, 1], [0, 3])},
        "/indices/values/1",
        {"position": [1, 0], "value": 3, "axis": 0, "size": 3, "allowed": [-3, 2]},
    ),
    ("index_depth_out_of_range", {"indices": int64([2, 3], [0] * 6)}, "/indices/shape", {"value": 3}),
    ("invalid_field", {"out_of_bounds": "clip"}, "/out_of_bounds", {}),
    ("invalid_field", {"fill_value": 1}, "/fill_value", {}),
    ("invalid_field", {"axis": 0}, "/axis", {}),
    ("invalid_field", {"batch_dims": 0}, "/batch_dims", {}),
    ("invalid_field", {"reduction": "sub"}, "/reduction", {}),
    ("invalid_field", {"dialect": "openvino-8"}, "/dialect", {}),
    ("invalid_field", {"updates": {"tensor": "items"}}, "/updates/tensor", {}),
    ("device_unavailable", {"device": "gpu"}, "/device", {}),
]


@pytest.mark.parametrize(("code", "change", "pointer", "place"), BAD_ND)
def test_scatternd_refuses_with_the_place(
    client: httpx.Client, code: str, change: dict[str, Any], pointer: str, place: dict[str, Any]
) -> None:
    answer = client.post(ND, json=nd_body(**change))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, code), problem
    assert problem["errors"][0]["pointer"] == pointer
    assert problem["errors"][0].items() >= place.items()
    assert problem["hint"]


BAD_ELEMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("rank_mismatch", {"indices": int64([2], [0, 2])}, "/indices/shape"),
    ("axis_out_of_range", {"axis": 2}, "/axis"),
    ("axis_out_of_range", {"axis": -(2**70)}, "/axis"),
    ("indices_shape_mismatch", {"indices": int64([1, 3], [0, 1, 2])}, "/indices/shape"),
    ("updates_shape_mismatch", {"updates": tensor("float32", [1, 2], [7, 8])}, "/updates/shape"),
    ("index_out_of_bounds", {"indices": int64([2, 2], [0, 2, -4, 0])}, "/indices/values/2"),
    ("invalid_field", {"axis": 0.5}, "/axis"),
    ("invalid_field", {"out_of_bounds": "error"}, "/out_of_bounds"),
]


@pytest.mark.parametrize(("code", "change", "pointer"), BAD_ELEMENTS)
def test_scatter_elements_refuses_with_the_place(
    client: httpx.Client, code: str, change: dict[str, Any], pointer: str
) -> None:
    answer = client.post(ELEMENTS, json=elements_body(**change))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, code), problem
    assert problem["errors"][0]["pointer"] == pointer
    if code != "invalid_field":
        assert problem["rule"]["dialect"] == "onnx-18"


def test_rules_take_their_turn(client: httpx.Client) -> None:
    """Each body breaks all the rules from its own on; what comes first is told."""
    body = nd_body(
        data=tensor("bfloat16", [3, 2], [1] * 6),
        indices=tensor("int32", [1, 1], [9]),
        updates=tensor("float32", [3], [1, 2, 3]),
        dialect="onnx-11",
        device="gpu",
    )
    found = []
    for change in (
        {},
        {"data": tensor("float16", [3, 2], [1] * 6)},
        {"indices": int64([1, 0], [])},
        {"updates": tensor("float16", [3], [1, 2, 3])},
        {"indices": int64([1, 1], [9])},
        {"updates": tensor("float16", [1, 2], [1, 2])},
        {"device": "cpu"},
        {"indices": int64([1, 1], [2])},
    ):
        body |= change
        answer = client.post(ND, json=body).json()
        found.append((answer.get("code"), answer.get("errors", [{}])[0].get("pointer")))
    assert found == [
        ("unsupported_dtype", "/data/dtype"),
        ("unsupported_dtype", "/indices/dtype"),
        ("unsupported_dtype", "/updates/dtype"),
        ("index_depth_out_of_range", "/indices/shape"),
        ("updates_shape_mismatch", "/updates/shape"),
        ("device_unavailable", "/device"),
        ("index_out_of_bounds", "/indices/values/0"),
        (None, None),
    ]


def test_safetensors_refuse_with_their_pointers(client: httpx.Client) -> None:
    arrays = {name: array(nd_body()[name]) for name in ("data", "indices", "updates")}
    cases: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
        ({"updates": None}, {}, "invalid_field", "/updates"),
        ({"more": np.zeros(1)}, {}, "invalid_field", "/more"),
        ({}, {"out_of_bounds": "clip"}, "invalid_field", "/query/out_of_bounds"),
        ({}, {"axis": 0}, "invalid_field", "/query/axis"),
        ({}, {"tensor": "items"}, "invalid_field", "/query/tensor"),
        ({"updates": np.zeros((2, 2))}, {}, "unsupported_dtype", "/updates"),
        ({"updates": np.zeros(2, np.float32)}, {}, "updates_shape_mismatch", "/updates"),
        ({"indices": np.array([[0], [-4]])}, {}, "index_out_of_bounds", "/indices"),
        ({}, {"reduction": "or"}, "invalid_field", "/query/reduction"),
    ]
    for change, query, code, pointer in cases:
        content = save({name: value for name, value in (arrays | change).items() if value is not None})
        problem = client.post(ND, params=query, content=content, headers=SAFETENSORS).json()
        assert (problem["code"], problem["errors"][0]["pointer"]) == (code, pointer), problem


def test_the_models_say_what_they_take(client: httpx.Client) -> None:
    for path in (ND, ELEMENTS):
        metadata = client.get(f"/v2/models{path}").json()
        assert [one["name"] for one in metadata["inputs"]] == ["data", "indices", "updates"]
        taken = ["INT64"] if path == ND else ["INT32", "INT64"]
        assert metadata["inputs"][1]["parameters"]["datatypes"] == taken
        config = client.get(f"/v2/models{path}/config").json()
        values = {name: value["string_value"] for name, value in config["parameters"].items()}
        own = {} if path == ND else {"axis": "0"}
        assert values == own | {"reduction": "none", "dialect": "onnx-18", "device": "auto"}
        assert any(entry["name"] == path[1:] for entry in client.post("/v2/repository/index").json())
        assert client.put(f"/tensors{path}", content=npy(np.zeros(3))).status_code == 422


def test_it_is_explained_and_counted(client: httpx.Client) -> None:
    explained = client.post(f"{ND}?explain=true", json=nd_body()).json()
    explanation = explained["explanation"]
    assert (explanation["operator"], explained["output"]["shape"]) == ("scatternd", [3, 2])
    assert explanation["updates"] == {"dtype": "float32", "shape": [2, 2], "bytes": 16}
    assert explanation["output_bytes"] == 24
    assert explanation["routes"][-1]["open"] is False
    content = save({name: array(nd_body()[name]) for name in ("data", "indices", "updates")})
    assert client.post(ND, params={"explain": "true"}, content=content, headers=SAFETENSORS).json()["explanation"]
    assert client.post(ND, json=nd_body()).status_code == 200
    assert f'gathernd_requests_total{{method="POST",path="{ND}",status="200"}}' in client.get("/metrics").text


def test_empty_tensors_are_legal_and_indices_into_them_are_not(client: httpx.Client) -> None:
    body = {"data": tensor("int8", [0, 3], []), "indices": int64([0, 1], []), "updates": tensor("int8", [0, 3], [])}
    assert client.post(ND, json=body).json()["output"] == {"dtype": "int8", "shape": [0, 3], "values": []}
    body |= {"indices": int64([1, 1], [0]), "updates": tensor("int8", [1, 3], [1, 2, 3])}
    error(client.post(ND, json=body), 422, "index_out_of_bounds")
    body = {
        "data": tensor("int8", [2, 0], []), "indices": int64([1, 1], [-1]), "updates": tensor("int8", [1, 0], [])
    }  # fmt: skip
    assert client.post(ND, json=body).json()["output"]["shape"] == [2, 0]
    body |= {"indices": int64([1, 1], [2])}
    error(client.post(ND, json=body), 422, "index_out_of_bounds")
    one = nd_body(indices=int64([1], [1]), updates=tensor("float32", [2], [0, 0]))
    assert client.post(ND, json=one).json()["output"]["values"] == [1, 2, 0, 0, 5, 6]
    scalar = nd_body(indices=int64([2], [1, 0]), updates=tensor("float32", [], [9]))
    assert client.post(ND, json=scalar).json()["output"]["values"] == [1, 2, 9, 4, 5, 6]


def test_the_hint_of_an_index_out_of_bounds_is_one_for_scatters(client: httpx.Client) -> None:
    """It does not name `out_of_bounds`, which scatters do not take."""
    hint = "Use an index from -3 to 2 at /indices/values/1, since axis 0 of data has size 3."
    found = error(client.post(ND, json=nd_body(indices=int64([2, 1], [0, 3]))), 422, "index_out_of_bounds")
    assert found["hint"] == hint
    found = error(client.post(ELEMENTS, json=elements_body(indices=int64([2, 2], [0, 3, 0, 0]))), 422, found["code"])
    assert found["hint"] == hint
    put_raw(client, "hinted", np.ones((3, 2), np.float32))
    try:
        sent = scatter_body([[0], [3]], np.ones((2, 2), np.float32))
        assert error(client.post("/tensors/hinted/scatter", json=sent), 422, found["code"])["hint"] == hint
    finally:
        client.delete("/tensors/hinted")
    empty = {
        "data": tensor("int8", [0, 3], []), "indices": int64([1, 1], [0]), "updates": tensor("int8", [1, 3], [1, 2, 3])
    }  # fmt: skip
    found = error(client.post(ND, json=empty), 422, found["code"])
    assert found["hint"] == "Send no index for axis 0, which has size 0, so that none is valid."


def test_an_index_whose_product_wraps_is_out_of_bounds(client: httpx.Client) -> None:
    for index in (2**62, 2**61, -(2**62), -(2**63)):
        body = nd_body(indices=int64([2, 1], [0, index]))
        error(client.post(ND, json=body), 422, "index_out_of_bounds")
        body = elements_body(indices=int64([2, 2], [0, index, 0, 0]))
        error(client.post(ELEMENTS, json=body), 422, "index_out_of_bounds")
    inner = nd_body(indices=int64([1, 2], [0, 3]), updates=tensor("float32", [1], [1]))
    error(client.post(ND, json=inner), 422, "index_out_of_bounds")  # though the flat offset is within


def test_a_resident_tensor_of_another_type_and_a_missing_one(client: httpx.Client) -> None:
    put_raw(client, "ints", np.arange(6, dtype=np.int32).reshape(3, 2))
    try:
        answer = client.post(ND, json=nd_body(data={"tensor": "ints"})).json()
        assert (answer["code"], answer["errors"][0]["pointer"]) == ("unsupported_dtype", "/updates/dtype")
    finally:
        client.delete("/tensors/ints")
    answer = client.post(ND, json=nd_body(data={"tensor": "nothing_there"})).json()
    assert (answer["code"], answer["errors"][0]["pointer"]) == ("tensor_not_found", "/data/tensor")


def test_the_loops_of_the_kernels_tests_are_those_of_onnx() -> None:
    """What kernels are held against, on the example with most axes."""
    (_, body, expected) = KNOWN[1]
    found = scatter_loops.scatter_nd(array(body["data"]), array(body["indices"]), array(body["updates"]), "none")
    assert found.reshape(-1).tolist() == expected
