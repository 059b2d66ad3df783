"""The known-answer cases on every CPU kernel: in every form of JSON, in the binary format and in the v2 protocol."""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import pack, unpack
from typing import Any

import httpx
import pytest

from tests.for_each import for_each
from tests.http.forms import items, nested, octets, packed, same, unpacked
from tests.http.known_cases import KnownCase, further_cases, own_cases
from tests.http.server import Server

CASES = [*own_cases(), *further_cases()]
SAFETENSORS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "bool": "BOOL"} | {
    f"{word}{bits}": f"{word[0].upper()}{bits}" for word in ("int", "uint") for bits in (8, 16, 32, 64)
}
V2 = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64", "bool": "BOOL"} | {
    f"{word}{bits}": f"{word.upper()}{bits}" for word in ("int", "uint") for bits in (8, 16, 32, 64)
}
DTYPES = {name: dtype for dtype, name in V2.items()}
SIZE = "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def plain_client() -> Iterator[httpx.Client]:
    """A client whose answers are not held to the native form of errors."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        yield client


each_case = for_each("case", CASES)


def judge(case: KnownCase, answer: httpx.Response, output: Any) -> None:
    """Hold an answer, whose output `output()` reads as dtype, shape and values, to the case."""
    about = (case, answer.status_code, answer.content[:500])
    if case.error is not None:
        assert answer.status_code == 422, about
        assert answer.json()["code"] == case.error, about
        return
    assert answer.status_code == 200, about
    assert case.output is not None
    dtype, shape, values = output()
    assert dtype == case.output["dtype"] == case.data["dtype"], about
    assert shape == case.output["shape"], about
    assert same(dtype, values, case.output["values"]), about


def test_cases_of_every_dialect_are_there() -> None:
    own = own_cases()
    assert len(own) == 123
    assert len({case.name for case in own}) == len(own)
    assert {case.dialect for case in own} == {"onnx-1", "onnx-11", "onnx-12", "onnx-13", "openvino-8"}
    assert sum(case.error is not None for case in own) == 31
    assert all((case.output is None) != (case.error is None) for case in own)


@each_case
def test_a_known_case_has_its_known_answer_in_every_form_of_json(case: KnownCase, every_client: httpx.Client) -> None:
    body = {"data": case.data, "indices": case.indices, "dialect": case.dialect, **case.attributes}
    forms = {
        "flat": body,
        "nested": {**body, "data": nested(case.data), "indices": nested(case.indices)},
        "base64": {**body, "data": packed(case.data), "indices": packed(case.indices), "output_encoding": "base64"},
    }
    for sent in forms.values():
        answer = every_client.post(case.path, json=sent)

        def output(answer: httpx.Response = answer) -> tuple[str, list[int], list[Any]]:
            found = answer.json()
            assert found["dialect"] == case.dialect
            return found["output"]["dtype"], found["output"]["shape"], items(found["output"])

        judge(case, answer, output)


def safetensors(**tensors: dict[str, Any]) -> bytes:
    """A body of the binary format."""
    raws = {name: octets(tensor["dtype"], tensor["values"]) for name, tensor in tensors.items()}
    head, place = {}, 0
    for name, raw in raws.items():
        kind = SAFETENSORS[tensors[name]["dtype"]]
        head[name] = {"dtype": kind, "shape": tensors[name]["shape"], "data_offsets": [place, place + len(raw)]}
        place += len(raw)
    text = json.dumps(head).encode()
    return pack("<Q", len(text)) + text + b"".join(raws.values())


@each_case
def test_a_known_case_has_its_known_answer_in_the_binary_format(case: KnownCase, every_client: httpx.Client) -> None:
    answer = every_client.post(
        case.path,
        params={"dialect": case.dialect, **case.attributes},
        content=safetensors(data=case.data, indices=case.indices),
        headers={"content-type": "application/x-safetensors"},
    )

    def output() -> tuple[str, list[int], list[Any]]:
        assert answer.headers["content-type"] == "application/x-safetensors"
        assert answer.headers["x-gathernd-dialect"] == case.dialect
        (size,) = unpack("<Q", answer.content[:8])
        found = json.loads(answer.content[8 : 8 + size])["output"]
        dtype = {name: dtype for dtype, name in SAFETENSORS.items()}[found["dtype"]]
        first, end = found["data_offsets"]
        return dtype, found["shape"], unpacked(dtype, answer.content[8 + size :][first:end])

    judge(case, answer, output)


@for_each("binary", [False, True])
@each_case
def test_a_known_case_has_its_known_answer_in_the_v2_protocol(
    case: KnownCase, binary: bool, every_server: Server, plain_client: httpx.Client
) -> None:
    inputs, raws = [], []
    for name, tensor in (("data", case.data), ("indices", case.indices)):
        described = {"name": name, "datatype": V2[tensor["dtype"]], "shape": tensor["shape"]}
        if binary:
            raws.append(octets(tensor["dtype"], tensor["values"]))
            described["parameters"] = {"binary_data_size": len(raws[-1])}
        else:
            described["data"] = tensor["values"]
        inputs.append(described)
    parameters = {"dialect": case.dialect, "binary_data_output": binary, **case.attributes}
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    model = case.operator.lower()
    answer = plain_client.post(
        f"{every_server.url}/v2/models/{model}/infer",
        content=b"".join([head, *raws]),
        headers={SIZE: str(len(head))} if binary else {},
    )

    def output() -> tuple[str, list[int], list[Any]]:
        size = int(answer.headers.get(SIZE, len(answer.content)))
        (found,) = json.loads(answer.content[:size])["outputs"]
        dtype = DTYPES[found["datatype"]]
        values = unpacked(dtype, answer.content[size:]) if binary else found["data"]
        return dtype, found["shape"], values

    judge(case, answer, output)
