"""What `kernels gather` compares with: every way that a runtime has for a piece of work.

A runtime may have several, such as an operator for rows beside GatherND, or an output that the caller gives; all are
tried, and the fastest counts. They get the arrays in their own form, sessions that are built, and outputs to use again
where they take them. What some are spared: negative indices, where they take none (openvino, tensorflow and torch's
index_select and gather get them normalised beforehand), and checks of indices, which openvino and tensorflow leave out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.gather_lines import Line, normalised
from benchmarks.kernels.turns import Call

Indices = NDArray[np.int64]


def _with_batches(line: Line, columns: list[Any], arange: Callable[[int], Any]) -> tuple[Any, ...]:
    """The index of fancy indexing: coordinates of the batches, then those of the tuples."""
    rank = len(line.indices) - 1
    places = [
        arange(size).reshape([-1 if axis == own else 1 for axis in range(rank)])
        for own, size in enumerate(line.data[: line.batch_dims])
    ]
    return (*places, *columns)


def numpy_index(line: Line, data: NDArray[Any], indices: Indices) -> Any:
    """Fancy indexing, which also says what the right result is."""
    return data[_with_batches(line, list(np.moveaxis(indices, -1, 0)), np.arange)]


def numpy_ways(line: Line, data: NDArray[Any], indices: Indices, threads: int) -> Iterator[Call]:
    yield lambda: numpy_index(line, data, indices)
    if line.plain:
        out = np.zeros(line.output, data.dtype)
        yield lambda: np.take(data, indices[..., 0], axis=0)
        yield lambda: np.take(data, indices[..., 0], axis=0, out=out)
    if line.along_last:
        yield lambda: np.take_along_axis(data, indices[..., 0], axis=-1)


def onnxruntime_ways(line: Line, data: NDArray[Any], indices: Indices, threads: int) -> Iterator[Call]:
    out = np.zeros(line.output, data.dtype)
    yield from session_ways(
        "GatherND", {"data": data, "indices": indices}, {"batch_dims": line.batch_dims}, out, threads
    )
    if line.plain:
        inputs = {"data": data, "indices": np.ascontiguousarray(indices[..., 0])}
        yield from session_ways("Gather", inputs, {"axis": 0}, out, threads)


def session_ways(
    operator: str,
    inputs: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Any],
    out: NDArray[Any],
    threads: int,
    *,
    opset: int = 13,
) -> Iterator[Call]:
    """An operator of ONNX in a session of ONNX Runtime: into an output of its own, and into `out`."""
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper = onnx.helper
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3

    def described(name: str, array: NDArray[Any]) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))

    node = helper.make_node(operator, list(inputs), ["output"], **attributes)
    given = [described(name, array) for name, array in inputs.items()]
    graph = helper.make_graph([node], operator, given, [described("output", out)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 9
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    yield partial(_run_session, session, dict(inputs))
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, runtime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_ortvalue_output("output", runtime.OrtValue.ortvalue_from_numpy(out))
    yield partial(_run_bound, session, binding, out)


def _run_session(session: Any, inputs: dict[str, NDArray[Any]]) -> Any:
    return session.run(None, inputs)[0]


def _run_bound(session: Any, binding: Any, out: NDArray[Any]) -> NDArray[Any]:
    session.run_with_iobinding(binding)
    return out


def openvino_ways(line: Line, data: NDArray[Any], indices: Indices, threads: int) -> Iterator[Call]:
    opset = importlib.import_module("openvino.opset8")
    positive = normalised(line, indices)
    yield openvino_way(
        lambda values, places: opset.gather_nd(values, places, line.batch_dims), [data, positive], threads
    )
    if line.indices[-1] == 1:
        axis = line.batch_dims
        yield openvino_way(
            lambda values, places: opset.gather(values, places, opset.constant(axis), axis),
            [data, np.ascontiguousarray(positive[..., 0])],
            threads,
        )


def openvino_way(operator: Callable[..., Any], inputs: list[NDArray[Any]], threads: int) -> Call:
    """A model of OpenVINO's that is `operator` of the inputs."""
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset8")
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
    parameters = [opset.parameter(array.shape, array.dtype) for array in inputs]
    model = openvino.Model([operator(*parameters)], parameters)
    request = openvino.Core().compile_model(model, "CPU", hints).create_infer_request()
    return partial(_infer, request, inputs)


def _infer(request: Any, inputs: list[NDArray[Any]]) -> Any:
    return request.infer(inputs, share_inputs=True, share_outputs=True)[0]


def torch_ways(line: Line, data: NDArray[Any], indices: Indices, threads: int) -> Iterator[Call]:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    values, places = torch.from_numpy(data), torch.from_numpy(indices)
    out = torch.from_numpy(np.zeros(line.output, data.dtype))
    index = _with_batches(line, list(places.unbind(-1)), torch.arange)
    yield lambda: values[_with_batches(line, list(places.unbind(-1)), torch.arange)]
    yield lambda: torch.ops.aten.index.Tensor_out(values, index, out=out)
    positive = torch.from_numpy(normalised(line, indices))
    if line.plain:
        yield lambda: torch.index_select(values, 0, positive[..., 0])
        yield lambda: torch.index_select(values, 0, positive[..., 0], out=out)
    if line.along_last:
        yield lambda: torch.gather(values, -1, positive[..., 0], out=out)


def tensorflow_ways(line: Line, data: NDArray[Any], indices: Indices, threads: int) -> Iterator[Call]:
    tensorflow = importlib.import_module("tensorflow")
    values, places = tensorflow.constant(data), tensorflow.constant(normalised(line, indices))
    yield lambda: tensorflow.gather_nd(values, places, batch_dims=line.batch_dims)
    if line.indices[-1] == 1:
        column = tensorflow.constant(normalised(line, indices)[..., 0])
        yield lambda: tensorflow.gather(values, column, axis=line.batch_dims, batch_dims=line.batch_dims)


PEERS: Mapping[str, Callable[[Line, NDArray[Any], Indices, int], Iterator[Call]]] = {
    "numpy": numpy_ways,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_ways,
    "torch": torch_ways,
    "tensorflow": tensorflow_ways,
}
