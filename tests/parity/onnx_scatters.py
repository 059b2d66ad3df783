"""ScatterND and ScatterElements by ONNX's reference evaluator and by ONNX Runtime: a model for each kind of request."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import onnx
import onnxruntime as ort
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tests.parity.items import Array, name_of
from tests.parity.messages import Request

NODES = {"/scatternd": "ScatterND", "/scatter_elements": "ScatterElements"}
OPSETS = {"onnx-18": 18, "onnx-16": 16, "onnx-13": 13, "onnx-11": 11}
Kind = tuple[str, str, str, int | None, str, str, tuple[int, int, int]]


def _kind(request: Request) -> Kind:
    """All that a model depends on: of the shapes only how many dimensions they have."""
    given = request.parameters
    dialect, axis = given.get("dialect", "onnx-18"), given.get("axis")
    types = name_of(request.arrays["data"]), name_of(request.arrays["indices"])
    data, indices, updates = (array.ndim for array in request.arrays.values())
    return request.path, dialect, given.get("reduction", "none"), axis, *types, (data, indices, updates)


def _model(kind: Kind) -> onnx.ModelProto:
    path, dialect, reduction, axis, dtype, index_type, ranks = kind
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    if reduction != "none":
        attributes["reduction"] = reduction
    names = ["data", "indices", "updates"]
    of_data, of_indices = (getattr(TensorProto, _name(each)) for each in (dtype, index_type))
    kinds = [of_data, of_indices, of_data]
    inputs = [
        helper.make_tensor_value_info(name, each, [None] * rank)
        for name, each, rank in zip(names, kinds, ranks, strict=True)
    ]
    output = helper.make_tensor_value_info("output", of_data, [None] * ranks[0])
    graph = helper.make_graph([helper.make_node(NODES[path], names, ["output"], **attributes)], "g", inputs, [output])
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
