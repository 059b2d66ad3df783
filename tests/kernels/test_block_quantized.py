"""The kernels of the block-quantized gather: equal to ONNX Runtime's, bit for bit."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from app.kernels import CpuKernel, reference
from app.kernels.kernel_by_name import kernel_named
from app.operators.gather_block_quantized import BlockQuantizedPlan
from app.tensors.dtypes import DTYPES
from tests.conftest import samples

KERNELS = [pytest.param(kernel_named("numba"), id="numba"), pytest.param(reference, id="numpy")]
ONNX_TYPES = {
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
}


class Table(NamedTuple):
    """A quantized table, and indices into it."""

    data: NDArray[np.uint8]
    scales: NDArray[Any]
    zero_points: NDArray[np.uint8] | None
    indices: NDArray[np.int64]
    bits: int
    block_size: int

    @property
    def plan(self) -> BlockQuantizedPlan:
        shape, name = self.data.shape, self.scales.dtype.name
        return BlockQuantizedPlan(
            rows=shape[0],
            groups=prod(shape[1:-1]),
            width=shape[-1] * 8 // self.bits,
            tuples=self.indices.size,
            bits=self.bits,
            block_size=self.block_size,
            dtype=name,
            item_size=DTYPES[name].item_size,
        )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    bits, block_size = draw(st.sampled_from((4, 8))), draw(st.sampled_from((16, 32, 128)))
    rows, last = draw(st.integers(1, 5)), draw(st.integers(0, 80))
    middle = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    blocks = -(-(last * 8 // bits) // block_size)
    seed = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = seed.normal(size=(rows, *middle, blocks)) * 10.0 ** draw(st.integers(-3, 3))
    packed = -(-blocks * bits // 8)
    zero_points = seed.integers(0, 256, (rows, *middle, packed), dtype=np.uint8) if draw(st.booleans()) else None
    return Table(
        seed.integers(0, 256, (rows, *middle, last), dtype=np.uint8),
        scales.astype(DTYPES[draw(st.sampled_from(("float32", "float16")))].numpy),
        zero_points,
        seed.integers(-rows, rows, tuple(draw(st.lists(st.integers(0, 4), max_size=3)))),
        bits,
        block_size,
    )


def gathered(kernel: CpuKernel, table: Table) -> NDArray[Any]:
    plan, dtype = table.plan, DTYPES[table.scales.dtype.name]
    out = np.empty(plan.output_items, dtype.carrier)
    further = {"scales": table.scales.reshape(-1).view(dtype.carrier)}
    if table.zero_points is not None:
        further["zero_points"] = table.zero_points.reshape(-1)
    bad = kernel.run(plan, table.data.reshape(-1), table.indices.reshape(-1), out, further=further)
    assert bad == -1
    shape = (*table.indices.shape, *table.data.shape[1:-1], plan.width)
    return out.view(dtype.numpy).reshape(shape)


def by_onnxruntime(table: Table) -> NDArray[Any]:
    arrays: dict[str, NDArray[Any]] = {"data": table.data, "indices": table.indices, "scales": table.scales}
    if table.zero_points is not None:
        arrays["zero_points"] = table.zero_points
    node = helper.make_node(
        "GatherBlockQuantized",
        list(arrays),
        ["output"],
        domain="com.microsoft",
        bits=table.bits,
        block_size=table.block_size,
        gather_axis=0,
        quantize_axis=table.data.ndim - 1,
    )
    types = {name: ONNX_TYPES[array.dtype.name] for name, array in arrays.items()}
    inputs = [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in arrays.items()]
    outputs = [helper.make_tensor_value_info("output", types["scales"], None)]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "gather", inputs, outputs)
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    output: NDArray[Any] = session.run(None, arrays)[0]
    return output


@pytest.mark.parametrize("kernel", KERNELS)
@given(table=tables())
@settings(max_examples=samples(200), deadline=None)
def test_it_is_equal_to_onnxruntime(kernel: CpuKernel, table: Table) -> None:
    found, expected = gathered(kernel, table), by_onnxruntime(table)
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_first_index_out_of_bounds_is_told_and_arrays_of_other_sizes_are_refused(kernel: CpuKernel) -> None:
    data = np.zeros((3, 8), np.uint8)
    table = Table(data, np.ones((3, 1), ml_dtypes.bfloat16), None, np.array([0, -3, 3, 5]), 4, 16)
    plan, out = table.plan, np.empty(64, np.uint16)
    arrays = data.reshape(-1), table.indices
    assert kernel.run(plan, *arrays, out, further={"scales": np.ones(3, np.uint16)}) == 2
    wrong_further: tuple[dict[str, NDArray[Any]], ...] = (
        {"scales": np.ones(2, np.uint16)},
        {"scales": np.ones(3, np.float32)},
        {"scales": np.ones(3, np.uint16), "zero_points": np.zeros(2, np.uint8)},
    )
    for further in wrong_further:
        with pytest.raises(TypeError):
            kernel.run(plan, *arrays, out, further=further)
    for wrong in (data.reshape(-1)[:-1], data.reshape(-1).astype(np.int8)):
        with pytest.raises(TypeError):
            kernel.run(plan, wrong, table.indices, out, further={"scales": np.ones(3, np.uint16)})
