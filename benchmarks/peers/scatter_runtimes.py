"""What `kernels scatter` compares with: every way that a runtime has for a piece of work.

They get the arrays in their own form, sessions that are built, and outputs to use again where they take them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.kernels.scatter_lines import Inputs, Line, scatter_by_numpy
from benchmarks.kernels.turns import Call
from benchmarks.peers.gather_runtimes import openvino_way, session_ways

_OPENVINO_REDUCTIONS = {"add": "sum", "mul": "prod"}
_TORCH_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


def numpy_ways(line: Line, inputs: Inputs, threads: int) -> Iterator[Call]:
    out = np.empty_like(inputs.data)
    yield lambda: scatter_by_numpy(line, inputs, out)


def torch_ways(line: Line, inputs: Inputs, threads: int) -> Iterator[Call]:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    data, indices, updates = (torch.from_numpy(array) for array in inputs)
    out, reduction = torch.empty_like(data), line.reduction
    if line.axis is not None:
        axis, name = line.axis, _TORCH_REDUCTIONS.get(reduction, "")
        if reduction == "none":
            yield lambda: out.copy_(data).scatter_(axis, indices, updates)
        elif reduction == "add":
            yield lambda: out.copy_(data).scatter_add_(axis, indices, updates)
        else:
            yield lambda: out.copy_(data).scatter_reduce_(axis, indices, updates, name)
        return
    columns = indices.unbind(-1)
    if reduction in ("none", "add"):
        yield lambda: out.copy_(data).index_put_(columns, updates, accumulate=reduction == "add")
    if len(columns) > 1:
        return
    if reduction == "none":
        yield lambda: out.copy_(data).index_copy_(0, columns[0], updates)
    elif reduction == "add":
        yield lambda: out.copy_(data).index_add_(0, columns[0], updates)
    else:
        yield lambda: out.copy_(data).index_reduce_(0, columns[0], updates, _TORCH_REDUCTIONS[reduction])
    if data.ndim == 1:
        yield from torch_ways(_as_elements(line), Inputs(inputs.data, inputs.indices[:, 0], inputs.updates), threads)


def _as_elements(line: Line) -> Line:
    """A scatter of single items along the only axis."""
    return Line(line.name, line.data, line.indices[:-1], line.reduction, line.dtype, 0)


def onnxruntime_ways(line: Line, inputs: Inputs, threads: int) -> Iterator[Call]:
    if line.axis is None and line.dtype == "float16" and line.reduction != "none":
        return  # 1.32 refuses it in an exception, after which the process crashes sooner or later
    operator = "ScatterND"
    attributes: dict[str, Any] = {"reduction": line.reduction}
    if line.axis is not None:
        operator, attributes["axis"] = "ScatterElements", line.axis
    out = np.zeros_like(inputs.data)
    yield from session_ways(operator, inputs._asdict(), attributes, out, threads, opset=18)


def openvino_ways(line: Line, inputs: Inputs, threads: int) -> Iterator[Call]:
    opset = importlib.import_module("openvino.opset15")
    reduction = _OPENVINO_REDUCTIONS.get(line.reduction, line.reduction)

    def scatter(data: Any, indices: Any, updates: Any) -> Any:
        if line.axis is None:
            return opset.scatter_nd_update(data, indices, updates, reduction)
        return opset.scatter_elements_update(data, indices, updates, opset.constant(line.axis), reduction)

    yield openvino_way(scatter, list(inputs), threads)


def tensorflow_ways(line: Line, inputs: Inputs, threads: int) -> Iterator[Call]:
    tensorflow: Any = importlib.import_module("tensorflow")
    name = "update" if line.reduction == "none" else line.reduction
    scatter = getattr(tensorflow, f"tensor_scatter_nd_{name}", None)
    if line.axis is None and scatter is not None:  # it has neither products nor ScatterElements
        data, indices, updates = (tensorflow.constant(array) for array in inputs)
        yield lambda: scatter(data, indices, updates)


PEERS: Mapping[str, Callable[[Line, Inputs, int], Iterator[Call]]] = {
    "numpy": numpy_ways,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_ways,
    "torch": torch_ways,
    "tensorflow": tensorflow_ways,
}
