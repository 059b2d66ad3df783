"""modeci_mdf's gathernd and execution engine beside this project's client; runs in an environment of its own.

python parity.py CASES.json: the cases are calls of gathernd. Prints, as JSON, one verdict for each case and for the
model: null where both agree, else what differs. The server is found through GATHERND_URL.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import modeci_mdf.functions.onnx as onnx_ops  # type: ignore[import-not-found]
import numpy as np
from modeci_mdf.execution_engine import EvaluableGraph  # type: ignore[import-not-found]
from modeci_mdf.mdf import Function, Graph, InputPort, Model, Node, OutputPort, Parameter  # type: ignore[import-not-found]

import gathernd


def difference(theirs: Any, ours: Any) -> str | None:
    """What differs between two arrays; theirs has been rounded to float32 or widened to int64 where it was neither."""
    theirs, ours = np.asarray(theirs), np.asarray(ours)
    if theirs.shape != ours.shape:
        return f"shape {theirs.shape} and {ours.shape}"
    if theirs.dtype != ours.dtype and (ours.dtype, theirs.dtype) not in (
        (np.float64, np.float32),
        (np.int32, np.int64),
    ):
        return f"dtype {theirs.dtype} and {ours.dtype}"
    if not np.array_equal(theirs, ours.astype(theirs.dtype), equal_nan=theirs.dtype.kind == "f"):
        return f"{theirs.tolist()} and {ours.tolist()}"
    return None


def outcome(function: Any, *arguments: Any, **named: Any) -> Any:
    """What a call returns, None where it raises."""
    try:
        return function(*arguments, **named)
    except Exception:  # noqa: BLE001  (onnxruntime has exceptions of many kinds)
        return None


def compare(case: dict[str, Any]) -> str | None:
    """One call of both functions, as arrays and, where that keeps its meaning, as lists."""
    data = np.array(case["data"], case["dtype"]).reshape(case["shape"])
    indices = np.array(case["indices"], case["index_dtype"]).reshape(case["index_shape"])
    batch_dims = case["batch_dims"]
    theirs = outcome(onnx_ops.gathernd, data, indices, batch_dims)
    ours = outcome(gathernd.gathernd, data, indices, batch_dims)
    if theirs is None or ours is None:
        return None if theirs is ours else f"refused: theirs {theirs is None}, ours {ours is None}"
    if data.size and indices.size:
        named = outcome(gathernd.gathernd, data=data, indices=indices.tolist(), batch_dims=batch_dims)
        if named is None or difference(ours, named):
            return "lists and names make a difference"
    return difference(theirs, ours)


def model() -> Model:
    """A node that doubles its input and picks from it by GatherND, and one that sums what came out."""
    made = Model(id="picks")
    graph = Graph(id="graph")
    made.graphs.append(graph)
    pick = Node(id="pick")
    pick.input_ports.append(InputPort(id="table", shape=(2, 3)))
    pick.parameters.append(Parameter(id="places", value=[[[2], [0]], [[1], [-1]]]))
    pick.functions.append(Function(id="twice", value="table * 2"))
    pick.functions.append(
        Function(id="picked", function="onnx::GatherND", args={"data": "twice", "indices": "places", "batch_dims": 1})
    )
    pick.output_ports.append(OutputPort(id="out", value="picked"))
    pick.output_ports.append(OutputPort(id="total", value="picked.sum()"))
    graph.nodes.append(pick)
    return made


def evaluate() -> dict[str, Any]:
    """The model's outputs by MDF's execution engine."""
    graph = EvaluableGraph(model().graphs[0], verbose=False)
    graph.evaluate(initializer={"table": np.array([[1.5, -2.0, 3.0], [4.0, 5.5, 6.0]], np.float32)})
    ports = graph.enodes["pick"].evaluable_outputs
    return {name: ports[name].curr_value for name in ("out", "total")}


def compare_models() -> str | None:
    """The model with MDF's GatherND and with ours; ours must have been called."""
    theirs = evaluate()
    with mock.patch.object(onnx_ops, "gathernd", side_effect=gathernd.gathernd) as ours:
        replaced = evaluate()
    if not ours.called:
        return "the engine does not call the function"
    expected = [[6.0, 3.0], [11.0, 12.0]]
    if np.asarray(theirs["out"]).tolist() != expected:
        return f"theirs gives {theirs['out']}"
    return difference(theirs["out"], replaced["out"]) or difference(theirs["total"], replaced["total"])


if __name__ == "__main__":
    with open(sys.argv[1]) as file:  # noqa: PTH123
        cases = json.load(file)
    print(json.dumps({"cases": [compare(case) for case in cases], "model": compare_models()}))  # noqa: T201
