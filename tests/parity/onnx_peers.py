"""Gathers and scatters by ONNX's reference evaluator and by ONNX Runtime: a model for each kind of request."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import httpx
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.conformance.random_cases import case_of
from tests.conformance.transports import FLAT, read_native
from tests.parity.items import Array, name_of
from tests.parity.messages import Request

NODES = {
    "/gathernd": "GatherND", "/gather": "Gather", "/gather_elements": "GatherElements", "/scatternd": "ScatterND",
    "/scatter_elements": "ScatterElements",
}  # fmt: skip
OPSETS = {"onnx-18": 18, "onnx-16": 16, "onnx-13": 13, "onnx-12": 12, "onnx-11": 11, "onnx-1": 10}
ATTRIBUTES = ("axis", "batch_dims", "reduction")
Kind = tuple[str, str, tuple[tuple[str, Any], ...], tuple[tuple[str, str, int], ...]]


def _kind(request: Request) -> Kind:
    """All that a model depends on: of the shapes only how many dimensions they have."""
    given = request.parameters
    dialect = given.get("dialect", "onnx-18" if request.path.startswith("/scatter") else "onnx-13")
    attributes = tuple(
        (name, given[name])
        for name in ATTRIBUTES
        if name in given and given[name] != "none" and (name, dialect) != ("batch_dims", "onnx-11")
    )
    inputs = tuple((name, name_of(array), array.ndim) for name, array in request.arrays.items())
    return request.path, dialect, attributes, inputs


def _model(kind: Kind) -> onnx.ModelProto:
    path, dialect, attributes, inputs = kind
    given = [
        helper.make_tensor_value_info(name, getattr(TensorProto, _name(dtype)), [None] * rank)
        for name, dtype, rank in inputs
    ]
    rank = [None] * inputs[0][2] if path.startswith("/scatter") else None
    output = helper.make_tensor_value_info("output", getattr(TensorProto, _name(inputs[0][1])), rank)
    node = helper.make_node(NODES[path], [name for name, _, _ in inputs], ["output"], **dict(attributes))
    graph = helper.make_graph([node], "g", given, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS[dialect])], ir_version=7)


def _name(dtype: str) -> str:
    return {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())


@lru_cache(5000)
def _evaluator(kind: Kind) -> ReferenceEvaluator:
    return ReferenceEvaluator(_model(kind))


@lru_cache(5000)
def _runtime(kind: Kind) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    return ort.InferenceSession(_model(kind).SerializeToString(), options, providers=["CPUExecutionProvider"])


def by_reference(request: Request) -> Array:
    made: Any = _evaluator(_kind(request)).run(None, dict(request.arrays))
    return made[0]  # type: ignore[no-any-return]


def by_runtime(request: Request) -> Array:
    made: Array = _runtime(_kind(request)).run(None, dict(request.arrays))[0]
    return made


PEERS = {"reference": by_reference, "runtime": by_runtime}


def answered(client: httpx.Client, request: Request) -> Array:
    """What the service answers to the request, in flat JSON."""
    answer = client.post(request.path, content=FLAT.body(case_of(request)))
    assert answer.status_code == 200, answer.text
    return read_native(answer).arrays["output"]
