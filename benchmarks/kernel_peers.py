"""What `benchmarks.kernels` compares with: every way that a runtime has for a piece of work.

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

from benchmarks.kernel_lines import Line, normalised

Call = Callable[[], Any]
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
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper = onnx.helper
    kind = helper.np_dtype_to_tensor_dtype(data.dtype)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    operators = [("GatherND", indices, {"batch_dims": line.batch_dims})]
    if line.plain:
        operators.append(("Gather", np.ascontiguousarray(indices[..., 0]), {"axis": 0}))
    for operator, places, attributes in operators:
        inputs = [
            helper.make_tensor_value_info("data", kind, list(data.shape)),
            helper.make_tensor_value_info("indices", onnx.TensorProto.INT64, list(places.shape)),
        ]
        node = helper.make_node(operator, ["data", "indices"], ["output"], **attributes)
        graph = helper.make_graph([node], "gather", inputs, [helper.make_tensor_value_info("output", kind, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        model.ir_version = 9
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        yield partial(_run_session, session, {"data": data, "indices": places})
        out = np.zeros(line.output, data.dtype)
        binding = session.io_binding()
        binding.bind_ortvalue_input("data", runtime.OrtValue.ortvalue_from_numpy(data))
        binding.bind_ortvalue_input("indices", runtime.OrtValue.ortvalue_from_numpy(places))
        binding.bind_ortvalue_output("output", runtime.OrtValue.ortvalue_from_numpy(out))
        yield partial(_run_bound, session, binding, out)


def _run_session(session: Any, inputs: dict[str, NDArray[Any]]) -> Any:
    return session.run(None, inputs)[0]


def _run_bound(session: Any, binding: Any, out: NDArray[Any]) -> NDArray[Any]:
    session.run_with_iobinding(binding)
    return out


def openvino_ways(line: Line, data: NDArray[Any], indices: Indices, threads: int) -> Iterator[Call]:
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset8")
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
    positive = normalised(line, indices)
    operators: list[tuple[Callable[..., Any], Indices]] = [
        (lambda values, places: opset.gather_nd(values, places, line.batch_dims), positive)
    ]
    if line.indices[-1] == 1:
        axis = line.batch_dims
        operators.append((
            lambda values, places: opset.gather(values, places, opset.constant(axis), axis),
            np.ascontiguousarray(positive[..., 0]),
        ))  # fmt: skip
    for operator, places in operators:
        inputs = [opset.parameter(data.shape, data.dtype), opset.parameter(places.shape, places.dtype)]
        model = openvino.Model([operator(*inputs)], inputs)
        request = openvino.Core().compile_model(model, "CPU", hints).create_infer_request()
        yield partial(_infer, request, [data, places])


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
