"""Requests by key in the binary formats and the inference protocol answer what the JSON of the same request answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.api.exchange import headers_of
from app.api.v2_model_lookup import Models, model_config, model_metadata
from app.errors import GatherError
from app.formats.body_formats import SAFETENSORS, formats_of
from app.formats.grpc.infer_answer import write_grpc_answer
from app.formats.grpc.infer_request import parse, read_grpc_request
from app.formats.grpc.message_fields import split
from app.formats.grpc.messages.classes import ModelInferRequest, ModelInferResponse
from app.formats.oip.infer_answer import write_answer
from app.formats.oip.infer_document import Model
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_layout
from app.operators.registry import ROWS
from app.telemetry.model_statistics import Statistics
from tests.golden.source import LONG, octets, protocol, safetensors
from tests.keyed import KEYS, LACKED, LIMITS, TABLE, Tables, ask, by_key, run, running, tensor
from tests.served import served

every_type = pytest.mark.parametrize("dtype", [*KEYS])
FILLED = {"missing": "fill", "fill_value": "2.5", "found": True}
GATHER = ROWS["gather"].signature


def model_of(name: str) -> Model:
    with running() as service:
        return Models(service, Statistics()).find_quickly(name)


def infer(name: str, arrays: dict[str, Any], parameters: dict[str, Any], *, binary: bool, **more: Any) -> Any:
    """The JSON of an answer of the inference protocol, with the items that follow it as `data`."""
    body, fields = protocol(arrays, parameters, binary=binary)
    if more:
        body = json.dumps(json.loads(body) | more).encode()
    size = fields.get("inference-header-content-length")
    model, memory = model_of(name), served().memory
    asked = read_body((body, None if size is None else int(size)), model, LIMITS, memory)
    pieces, length = write_answer(run(asked.call), model, asked, memory)
    whole = b"".join(pieces)
    answer = json.loads(whole[:length])
    at = length or 0
    for one in answer["outputs"]:
        if binary:
            at += one["parameters"]["binary_data_size"]
            one["data"] = whole[at - one["parameters"]["binary_data_size"] : at]
    assert at == (len(whole) if binary else 0)
    return answer


def refused(name: str, arrays: dict[str, Any], parameters: dict[str, Any], **more: Any) -> tuple[str, str]:
    with pytest.raises(GatherError) as caught:
        infer(name, arrays, parameters, binary=False, **more)
    return caught.value.code, caught.value.places[0].pointer


def keys_of(dtype: str) -> dict[str, Any]:
    """Three keys, of which a table with keys of the type lacks the second."""
    return tensor(dtype, [3], [KEYS[dtype][2], LACKED[dtype], KEYS[dtype][0]])


def wanted(dtype: str) -> Any:
    return ask({"data": {"tensor": dtype}, "keys": keys_of(dtype), **FILLED, "fill_value": 2.5})


@every_type
def test_the_protocol_in_json(dtype: str) -> None:
    found = infer(dtype, {"keys": keys_of(dtype)}, FILLED, binary=False)
    output, known = found["outputs"]
    assert (output["shape"], output["data"]) == ([3, 3], wanted(dtype)["output"]["values"])
    assert (known["name"], known["datatype"], known["data"]) == ("found", "BOOL", [True, False, True])
    assert found["parameters"] == {"dialect": "onnx-13", "device": "cpu", "missing": 1}


@every_type
def test_the_protocol_in_binary(dtype: str) -> None:
    found = infer(dtype, {"keys": keys_of(dtype)}, FILLED, binary=True)
    output, known = found["outputs"]
    assert output["data"] == octets(wanted(dtype)["output"])
    assert known["data"] == b"\1\0\1"


def test_the_protocol_without_found_and_with_outputs_by_name() -> None:
    keys = {"keys": keys_of("int64")}
    found = infer("int64", keys, {"missing": "fill"}, binary=False)
    assert [one["name"] for one in found["outputs"]] == ["output"]
    assert found["parameters"]["missing"] == 1
    for name in ("output", "found"):
        found = infer("int64", keys, FILLED, binary=False, outputs=[{"name": name}])
        assert [one["name"] for one in found["outputs"]] == [name]
    assert refused("int64", keys, {}, outputs=[{"name": "found"}]) == ("invalid_field", "/outputs/0/name")


def test_a_flat_list_of_keys_without_a_shape_has_one_dimension() -> None:
    inputs = [{"name": "keys", "data": [0, 1001]}]
    found = infer("int64", {}, {}, binary=False, inputs=inputs)
    assert found["outputs"][0]["shape"] == [2, 3]
    assert found["outputs"][0]["data"] == TABLE[[4, 0]].reshape(-1).tolist()


def test_the_row_for_missing_keys_is_json_text() -> None:
    for text in ("1", '{"key": -7}'):
        found = infer("int64", {"keys": keys_of("int64")}, {"missing": "row", "missing_row": text}, binary=False)
        assert found["outputs"][0]["data"] == TABLE[[2, 1, 0]].reshape(-1).tolist()


@pytest.mark.parametrize(
    ("code", "pointer", "name", "arrays", "parameters"),
    [
        ("key_not_found", "/inputs/0/data/1", "int64", {"keys": keys_of("int64")}, {}),
        ("unsupported_dtype", "/inputs/0/datatype", "int64", {"keys": keys_of("uint64")}, {}),
        ("no_keys", "", "plain", {"keys": keys_of("int64")}, {}),
        ("invalid_field", "/inputs/1/name", "int64", {"keys": keys_of("int64"), "indices": keys_of("int64")}, {}),
        ("invalid_field", "/parameters/missing", "int64", {"indices": tensor("int64", [1], [0])}, {"missing": "row"}),
        ("invalid_field", "/parameters/missing_row", "int64", {"keys": keys_of("int64")}, {"missing_row": 1}),
        ("invalid_field", "/parameters/batch_dims", "int64", {"keys": keys_of("int64")}, {"batch_dims": 0}),
        ("invalid_field", "/parameters/axis", "int64", {"keys": keys_of("int64")}, {"axis": 1}),
        ("invalid_field", "/parameters/out_of_bounds", "int64", {"keys": keys_of("int64")}, {"out_of_bounds": "clip"}),
        ("invalid_field", "/inputs/1/name", "gather",
         {"data": tensor("float32", [1], [1]), "keys": keys_of("int64")}, {}),
    ],
)  # fmt: skip
def test_what_the_protocol_refuses(
    code: str, pointer: str, name: str, arrays: dict[str, Any], parameters: dict[str, Any]
) -> None:
    assert refused(name, arrays, parameters) == (code, pointer)


@every_type
@pytest.mark.parametrize("raw", [False, True])
def test_grpc(dtype: str, raw: bool) -> None:
    message = ModelInferRequest(model_name=dtype)
    given = keys_of(dtype)
    one = message.inputs.add(name="keys", datatype=LONG[dtype], shape=given["shape"])
    if raw:
        message.raw_input_contents.append(octets(given))
    else:
        field = {"int64": "int64_contents", "uint64": "uint64_contents", "string": "bytes_contents"}[dtype]
        getattr(one.contents, field).extend([key.encode() if dtype == "string" else key for key in given["values"]])
    message.parameters["missing"].string_param = "fill"
    message.parameters["fill_value"].string_param = "2.5"
    message.parameters["found"].bool_param = True
    model, memory = model_of(dtype), served().memory
    cut = split(message.SerializeToString(), LIMITS.features)
    assert cut is not None
    asked = read_grpc_request(parse(cut, memory), model, LIMITS, memory)
    answer = ModelInferResponse.FromString(write_grpc_answer(run(asked.call), model, asked, memory))
    assert [output.name for output in answer.outputs] == ["output", "found"]
    assert answer.raw_output_contents[0] == octets(wanted(dtype)["output"])
    assert answer.raw_output_contents[1] == b"\1\0\1"
    assert answer.parameters["missing"].int64_param == 1


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_safetensors(dtype: str) -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    query = f"tensor={dtype}&missing=fill&fill_value=2.5&found=true".encode()
    call, encoding = codec.read(safetensors({"keys": keys_of(dtype)}), query, GATHER, LIMITS, served().memory)
    answer = run(call)
    body = b"".join(codec.write(answer, encoding, served().memory))
    (output, known), start = read_layout(body)
    assert (output.name, output.shape, known.name, known.shape) == ("output", (3, 3), "found", (3,))
    assert body[start : start + output.end] == octets(wanted(dtype)["output"])
    assert body[start + known.begin :] == b"\1\0\1"
    assert dict(headers_of(answer))[b"x-gathernd-missing"] == b"1"
    assert b"x-gathernd-replaced" not in dict(headers_of(answer))


@pytest.mark.parametrize(
    ("pointer", "arrays", "query"),
    [
        ("/indices", {"keys": keys_of("int64"), "indices": keys_of("int64")}, "tensor=int64"),
        ("/keys", {"keys": keys_of("int64"), "data": tensor("int64", [1], [0])}, ""),
        ("/data", {"keys": keys_of("int64")}, ""),
        ("/query/missing", {"indices": keys_of("int64")}, "tensor=int64&missing=fill"),
        ("/query/axis", {"keys": keys_of("int64")}, "tensor=int64&axis=1"),
        ("/query/missing_row", {"keys": keys_of("int64")}, "tensor=int64&missing=row&missing_row=x"),
        ("/query/found", {"keys": keys_of("int64")}, "tensor=int64&found=yes"),
    ],
)
def test_what_safetensors_refuse(pointer: str, arrays: dict[str, Any], query: str) -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    with pytest.raises(GatherError) as caught:
        codec.read(safetensors(arrays), query.encode(), GATHER, LIMITS, served().memory)
    assert (caught.value.code, caught.value.places[0].pointer) == ("invalid_field", pointer)


def test_the_metadata_of_a_table_with_keys_names_them() -> None:
    table = Tables().get("string")
    model = model_of("string")
    described = model_metadata(model, table, ["1"])
    assert [(one["name"], one["datatype"]) for one in described["inputs"]] == [("indices", "INT64"), ("keys", "BYTES")]
    assert [one["name"] for one in described["outputs"]] == ["output", "found"]
    assert model_config(model, table)["input"][1] == {"name": "keys", "data_type": "TYPE_STRING", "dims": (-1,)}


def test_a_gather_by_key_without_missing_ones_counts_none() -> None:
    assert ask(by_key("int64", [0]))["missing"] == 0


def string_keys(texts: list[str], prefix: str = "") -> dict[str, Any]:
    cuts = [0]
    for text in texts:
        cuts.append(cuts[-1] + len(text.encode()))
    octets_ = list("".join(texts).encode())
    return {
        f"{prefix}keys.offsets": tensor("int64", [len(cuts)], cuts),
        f"{prefix}keys.bytes": tensor("uint8", [len(octets_)], octets_),
    }


def test_strings_in_safetensors_are_two_tensors() -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    body = safetensors(string_keys(keys_of("string")["values"]))
    call, _ = codec.read(body, b"tensor=string&missing=fill&fill_value=2.5", GATHER, LIMITS, served().memory)
    assert run(call).output.array.tolist() == wanted("string")["output"]["values"]
    lookup = ROWS["lookup"].signature
    text = json.dumps({"features": [{"tensor": "string", "missing": "fill"}, {"tensor": "plain"}]})
    arrays = string_keys(["", "x", "jürgen"], "0.") | {"1.indices": tensor("int64", [3], [0, 1, 2])}
    call, _ = codec.read(safetensors(arrays, {"lookup": text}), b"", lookup, LIMITS, served().memory)
    assert run(call).output.array.reshape(3, 6)[:, :3].tolist() == [TABLE[1].tolist(), [0, 0, 0], TABLE[2].tolist()]


@pytest.mark.parametrize(
    ("code", "pointer", "change"),
    [
        ("invalid_field", "/keys.offsets", {"keys.bytes": None}),
        ("unsupported_dtype", "/keys.offsets", {"keys.offsets": tensor("int32", [2], [0, 1])}),
        ("unsupported_dtype", "/keys.bytes", {"keys.bytes": tensor("int8", [1], [65])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [0], [])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [2], [0, 2])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [2], [1, 1])}),
        ("element_count_mismatch", "/keys.offsets", {"keys.offsets": tensor("int64", [4], [0, 2, -1, 1])}),
        ("invalid_field", "/keys.offsets", {"keys.offsets": tensor("int64", [1, 2], [0, 1])}),
        ("value_not_representable", "/keys.bytes", {"keys.bytes": tensor("uint8", [1], [255])}),
    ],
)
def test_wrong_string_keys_in_safetensors(code: str, pointer: str, change: dict[str, Any]) -> None:
    codec = formats_of(GATHER)[SAFETENSORS]
    arrays = {name: given for name, given in (string_keys(["A"]) | change).items() if given is not None}
    with pytest.raises(GatherError) as caught:
        codec.read(safetensors(arrays), b"tensor=string", GATHER, LIMITS, served().memory)
    assert (caught.value.code, caught.value.places[0].pointer) == (code, pointer)
