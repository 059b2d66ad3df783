"""The worked examples of the specification texts: GatherND, Gather, GatherElements and the scatters.

They are written out here from the texts. An example that several texts give is asked in each dialect that has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.parity.items import NUMPY, Array

MATRIX = [[0, 1], [2, 3]]
CUBE = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
# number, batch_dims, data, indices, output
GATHERND = {
    "1": (0, MATRIX, [[0, 0], [1, 1]], [0, 3]),
    "2": (0, MATRIX, [[1], [0]], [[2, 3], [0, 1]]),
    "3": (0, CUBE, [[0, 1], [1, 0]], [[2, 3], [4, 5]]),
    "4": (0, CUBE, [[[0, 1]], [[1, 0]]], [[[2, 3]], [[4, 5]]]),
    "5": (1, CUBE, [[1], [0]], [[2, 3], [4, 5]]),
}
BACKEND = {
    "test_gathernd_example_int32": ("int32", *GATHERND["1"]),
    "test_gathernd_example_float32": ("float32", *GATHERND["4"]),
    "test_gathernd_example_int32_batch_dim1": ("int32", *GATHERND["5"]),
}
SIXTH = [
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]],
    [[13, 14, 15, 16], [17, 18, 19, 20], [21, 22, 23, 24]],
]
OPENVINO = {
    "1": (0, [[1, 2], [3, 4]], [[0, 0], [1, 0]], [1, 3]),
    "2": (0, [[1, 2], [3, 4]], [[1], [0]], [[3, 4], [1, 2]]),
    "3": (0, [[1, 2], [3, 4]], [[[1]], [[0]]], [[[3, 4]], [[1, 2]]]),
    "4": (1, [[1, 2], [3, 4]], [[1], [0]], [2, 3]),
    "5": (1, SIXTH, [[1], [0]], [[5, 6, 7, 8], [13, 14, 15, 16]]),
    "6": (
        2,
        SIXTH,
        [[[[1]], [[0]], [[2]]], [[[0]], [[2]], [[2]]]],
        [[[2], [5], [11]], [[13], [19], [23]]],
    ),
    "7": (
        3,
        [[[[1, 2, 3, 4], [5, 6, 7, 8]], [[9, 10, 11, 12], [13, 14, 15, 16]]]],
        [[[[1], [0]], [[3], [2]]]],
        [[[2, 5], [12, 15]]],
    ),
}
# The examples of GatherElements: axis, data, indices, output
GATHER_ELEMENTS = {
    "1": ("int32", 1, [[1, 2], [3, 4]], [[0, 0], [1, 0]], [[1, 1], [4, 3]]),
    "2": ("float32", 0, [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 0], [2, 0, 0]], [[4, 8, 3], [7, 2, 3]]),
    "3": ("float32", 0, [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[-1, -2, 0], [-2, 0, 0]], [[7, 5, 3], [4, 2, 3]]),
}
GATHER_ELEMENTS_6 = {
    "1": (0, [[1, 2], [3, 4]], [[0, 1], [0, 0]], [[1, 4], [1, 2]]),
    "2": (1, [[1, 7], [4, 3]], [[1, 1, 0], [1, 0, 1]], [[7, 7, 1], [3, 4, 3]]),
    "3": (0, [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 0, 1], [1, 2, 0]], [[4, 2, 6], [4, 8, 3]]),
}
_UP, _DOWN = (
    [[1, 2, 3, 4], [5, 6, 7, 8], [8, 7, 6, 5], [4, 3, 2, 1]],
    [[8, 7, 6, 5], [4, 3, 2, 1], [1, 2, 3, 4], [5, 6, 7, 8]],
)
# path, type, further fields, data, indices, updates, output
SCATTERS: list[tuple[str, str, dict[str, Any], Any, Any, Any, Any]] = [
    ("/scatternd", "int32", {}, [1, 2, 3, 4, 5, 6, 7, 8], [[4], [3], [1], [7]], [9, 10, 11, 12],
     [1, 11, 3, 10, 9, 6, 7, 12]),
    ("/scatternd", "float32", {}, [_UP, _UP, _DOWN, _DOWN], [[0], [2]],
     [[[row] * 4 for row in (5, 6, 7, 8)], [[row] * 4 for row in (1, 2, 3, 4)]],
     [[[row] * 4 for row in (5, 6, 7, 8)], _UP, [[row] * 4 for row in (1, 2, 3, 4)], _DOWN]),
    ("/scatternd", "int32", {"reduction": "add"}, [[1, 2], [3, 4]], [[0, 1], [-1, -1], [0, 1]], [10, 20, 30],
     [[1, 42], [3, 24]]),
    ("/scatternd", "int32", {"reduction": "mul"}, [[1, 2], [3, 4]], [[1], [1]], [[2, 3], [5, 7]], [[1, 2], [30, 84]]),
    ("/scatternd", "float32", {"reduction": "min"}, [1, 5, 3], [[0], [1], [1]], [-1, 4, 9], [-1, 4, 3]),
    ("/scatternd", "bfloat16", {"reduction": "add"}, [256], [[0], [0], [0]], [1, 1, 1], [256]),
    ("/scatternd", "float32", {}, [[1, 2], [3, 4], [5, 6]], [[1], [-2]], [[7, 8], [-0.0, 9]],
     [[1, 2], [-0.0, 9], [5, 6]]),
    ("/scatter_elements", "float32", {}, [[0] * 3] * 3, [[1, 0, 2], [0, 2, 1]], [[1, 1.5, 2], [2.5, 3, 3.5]],
     [[2.5, 1.5, 0], [1, 0, 3.5], [0, 3, 2]]),
    ("/scatter_elements", "float32", {"axis": 1}, [[1, 2, 3, 4, 5]], [[1, -2]], [[1.5, 2.5]], [[1, 1.5, 3, 2.5, 5]]),
    ("/scatter_elements", "float32", {"axis": -1, "reduction": "max"}, [[1, 2, 3, 4, 5]], [[1, 1]], [[1.5, 2.5]],
     [[1, 2.5, 3, 4, 5]]),
]  # fmt: skip


def _examples() -> Iterator[tuple[str, str, dict[str, Any], Array]]:
    body: dict[str, Any]
    for dialect in ("onnx-13", "onnx-12", "onnx-11"):
        for name, (b, data, indices, output) in GATHERND.items():
            if b and dialect == "onnx-11":  # it has no batch_dims and gives no such example
                continue
            body = {"data": np.array(data), "indices": np.array(indices), "dialect": dialect}
            body |= {} if dialect == "onnx-11" else {"batch_dims": b}
            yield f"{dialect}, example {name}", "/gathernd", body, np.array(output)
    for dialect in ("onnx-13", "onnx-12"):
        for name, (dtype, b, data, indices, output) in BACKEND.items():
            body = {"data": np.array(data, dtype), "indices": np.array(indices), "batch_dims": b, "dialect": dialect}
            yield f"{dialect}, {name}", "/gathernd", body, np.array(output, dtype)
    for index_type in ("int64", "int32", "uint8"):
        for name, (b, data, indices, output) in OPENVINO.items():
            body = {"data": np.array(data, np.int32), "indices": np.array(indices, index_type)}
            body |= {"batch_dims": b, "dialect": "openvino-8"}
            yield f"openvino-8 by {index_type}, example {name}", "/gathernd", body, np.array(output, np.int32)
    for dialect in ("onnx-13", "onnx-11"):
        for index_type in ("int64", "int32"):
            for name, (dtype, axis, data, indices, output) in GATHER_ELEMENTS.items():
                body = {"data": np.array(data, dtype), "indices": np.array(indices, index_type), "axis": axis}
                wanted = np.array(output, dtype)
                yield (
                    f"{dialect} by {index_type}, example {name}",
                    "/gather_elements",
                    body | {"dialect": dialect},
                    wanted,
                )
    for index_type in ("int64", "int32"):
        for name, (axis, data, indices, output) in GATHER_ELEMENTS_6.items():
            body = {"data": np.array(data, np.int32), "indices": np.array(indices, index_type), "axis": axis}
            body |= {"dialect": "openvino-6"}
            yield f"openvino-6 by {index_type}, example {name}", "/gather_elements", body, np.array(output, np.int32)
    for number, (path, dtype, more, data, indices, updates, output) in enumerate(SCATTERS):
        given, changed, wanted = (np.array(each).astype(NUMPY[dtype]) for each in (data, updates, output))
        body = {"data": given, "indices": np.array(indices, np.int64), "updates": changed, **more}
        yield f"example {number}", path, body, wanted


EXAMPLES = list(_examples())
