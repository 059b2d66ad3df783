"""What users write with the generated Python client; prints what it got, as JSON."""

from __future__ import annotations

import json
import struct
import sys
from base64 import b64decode, b64encode
from typing import Any

from generated import Client
from generated.api.gather import gathernd, gathernd_backward, lookup
from generated.api.inference_protocol import model_infer
from generated.api.scatter import scatternd
from generated.models import (
    BackwardAnswer,
    Data,
    DataDtype,
    GatherAnswer,
    GatherNDBackwardRequest,
    GatherNDRequest,
    GatherNDRequestOutputEncoding,
    InferAnswer,
    InferInput,
    InferInputDatatype,
    InferRequest,
    InferRequestParameters,
    LookupAnswer,
    LookupFeature,
    LookupFeaturePooling,
    LookupRequest,
    Problem,
    ProtocolError,
    ScatterNDRequest,
    ScatterNDRequestReduction,
    Tensor,
    TensorDtype,
)
from generated.types import Unset


def indices(shape: list[int], values: list[int]) -> Tensor:
    return Tensor(dtype=TensorDtype.INT64, shape=shape, values=values)


def typed(dtype: DataDtype, shape: list[int], values: list[Any]) -> Data:
    return Data(dtype=dtype, shape=shape, values=values)


def gather(client: Client, request: GatherNDRequest) -> GatherAnswer:
    answer = gathernd.sync(client=client, body=request)
    assert isinstance(answer, GatherAnswer), answer
    return answer


def values(client: Client, request: GatherNDRequest) -> dict[str, Any]:
    output = gather(client, request).output
    assert not isinstance(output.values, Unset)
    return {"dtype": output.dtype.value, "shape": output.shape, "values": output.values}


def int64(client: Client) -> list[str]:
    """Integers above 2^53, which not every JSON reader keeps, as base64 in and out."""
    sent = b64encode(struct.pack("<3q", 2**53 + 1, 7, -(2**63))).decode()
    answer = gather(
        client,
        GatherNDRequest(
            data=Data(dtype=DataDtype.INT64, shape=[3], base64=sent),
            indices=indices([2, 1], [2, 0]),
            output_encoding=GatherNDRequestOutputEncoding.BASE64,
        ),
    )
    assert not isinstance(answer.output.base64, Unset)
    return [str(item) for item in struct.unpack("<2q", b64decode(answer.output.base64))]


def problem(client: Client, data: Data, place: Tensor) -> dict[str, Any]:
    """Every field of an error."""
    found = gathernd.sync(client=client, body=GatherNDRequest(data=data, indices=place))
    assert isinstance(found, Problem), found
    assert not isinstance(found.errors, Unset)
    assert not isinstance(found.rule, Unset)
    first = found.errors[0]
    return {
        "status": found.status,
        "code": found.code,
        "clause": found.rule.clause,
        "total": found.total,
        "pointer": first.pointer,
        "position": first.position,
        "value": first.value,
        "axis": first.axis,
        "size": first.size,
        "allowed": first.allowed,
    }


def infer_inputs(place: list[int]) -> list[InferInput]:
    return [
        InferInput(name="data", datatype=InferInputDatatype.FP32, shape=[2, 2], data=[0, 1, 2, 3]),
        InferInput(name="indices", datatype=InferInputDatatype.INT64, shape=[1, 1], data=place),
    ]


def infer(client: Client) -> dict[str, Any]:
    parameters = InferRequestParameters(batch_dims=0)
    request = InferRequest(inputs=infer_inputs([1]), id="seven", parameters=parameters)
    answer = model_infer.sync("gathernd", client=client, body=request)
    assert isinstance(answer, InferAnswer), answer
    output = answer.outputs[0]
    return {"id": answer.id, "datatype": output.datatype.value, "shape": output.shape, "data": output.data}


def infer_error(client: Client) -> dict[str, Any]:
    answer = model_infer.sync("gathernd", client=client, body=InferRequest(inputs=infer_inputs([5])))
    assert isinstance(answer, ProtocolError), answer
    assert not isinstance(answer.errors, Unset)
    return {"code": answer.code, "pointer": answer.errors[0].pointer, "allowed": answer.errors[0].allowed}


def scatter(client: Client, data: Data) -> list[Any]:
    """Two updates of one element, added."""
    updates = Tensor(dtype=TensorDtype.FLOAT32, shape=[2], values=[5, 7])
    request = ScatterNDRequest(
        data=data, indices=indices([2, 2], [0, 1, 0, 1]), updates=updates, reduction=ScatterNDRequestReduction.ADD
    )
    answer = scatternd.sync(client=client, body=request)
    assert isinstance(answer, GatherAnswer), answer
    assert not isinstance(answer.output.values, Unset)
    return answer.output.values


def gradient(client: Client) -> dict[str, Any]:
    grad_output = Tensor(dtype=TensorDtype.FLOAT32, shape=[2, 2], values=[1, 2, 3, 4])
    request = GatherNDBackwardRequest(
        indices=indices([2, 1], [2, 2]), grad_output=grad_output, data_shape=[3, 2], lda_coeff=0.5, sparse=True
    )
    answer = gathernd_backward.sync(client=client, body=request)
    assert isinstance(answer, BackwardAnswer), answer
    assert not isinstance(answer.grad_indices, Unset)
    assert not isinstance(answer.grad_values, Unset)
    return {"indices": answer.grad_indices.values, "values": answer.grad_values.values}


def looked_up(client: Client) -> dict[str, Any]:
    """Rows of a table beside a bag of them."""
    bag = LookupFeature(
        tensor="table",
        indices=indices([3], [0, 1, 1]),
        offsets=indices([1], [0]),
        pooling=LookupFeaturePooling.SUM,
    )
    rows = LookupFeature(tensor="table", indices=indices([1], [1]))
    answer = lookup.sync(client=client, body=LookupRequest(features=[rows, bag]))
    assert isinstance(answer, LookupAnswer), answer
    assert not isinstance(answer.output, Unset)
    etags = [feature.data_etag for feature in answer.features]
    return {"shape": answer.output.shape, "values": answer.output.values, "data_etags": etags}


def lookup_error(client: Client) -> dict[str, Any]:
    wrong = LookupFeature(tensor="table", indices=indices([2], [0, 2]))
    found = lookup.sync(client=client, body=LookupRequest(features=[wrong]))
    assert isinstance(found, Problem), found
    assert not isinstance(found.errors, Unset)
    return {"code": found.code, "pointer": found.errors[0].pointer, "allowed": found.errors[0].allowed}


def main(url: str) -> None:
    with Client(base_url=url) as client:
        square = typed(DataDtype.FLOAT32, [2, 2], [0, 1, 2, 3])
        halves = typed(DataDtype.FLOAT16, [4], [1.5, -0.0999755859375, 65504, "NaN"])
        words = typed(DataDtype.STRING, [3], ["", 'a "quote"', "Größe 😀"])
        empty = typed(DataDtype.FLOAT32, [0, 2], [])
        resident = gather(client, GatherNDRequest(data=Data(tensor="table"), indices=indices([1, 1], [1])))
        got = {
            "example 1": values(client, GatherNDRequest(data=square, indices=indices([2, 2], [0, 0, 1, 1]))),
            "float16": values(client, GatherNDRequest(data=halves, indices=indices([3, 1], [1, 2, 3]))),
            "int64": int64(client),
            "string": values(client, GatherNDRequest(data=words, indices=indices([2, 1], [2, 0]))),
            "batch_dims": values(client, GatherNDRequest(data=square, indices=indices([2, 1], [1, 0]), batch_dims=1)),
            "resident": {"values": resident.output.values, "data_etag": resident.data_etag},
            "error": problem(client, square, indices([2, 2], [0, 0, 5, 1])),
            "error on an empty axis": problem(client, empty, indices([1, 1], [0])),
            "infer": infer(client),
            "infer error": infer_error(client),
            "scatter": scatter(client, square),
            "gradient": gradient(client),
            "lookup": looked_up(client),
            "lookup error": lookup_error(client),
        }
    sys.stdout.write(json.dumps(got))


main(sys.argv[1])
