"""Real requests with their real responses, shown in the OpenAPI file.

A test sends each request and compares the response.
"""

from __future__ import annotations

from typing import Any, Final

Shown = dict[str, tuple[str, dict[str, Any], dict[str, Any]]]
"""The examples by name: what each one shows, its request, and its response."""


def _tensor(dtype: str, shape: list[int], values: list[Any]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "values": values}


def _indices(shape: list[int], values: list[Any]) -> dict[str, Any]:
    return _tensor("int64", shape, values)


def _answer(output: dict[str, Any], dialect: str = "onnx-13") -> dict[str, Any]:
    return {"output": output, "dialect": dialect, "device": "cpu"}


_DATA: Final = _tensor("float32", [2, 2], [0, 1, 2, 3])
_DEQUANTIZED: Final = [half for low in range(8) for half in (low / 2 - 4, -3.5)]
REQUESTS: Final[dict[str, Shown]] = {
    "gathernd": {
        "elements": (
            "Example 1 of the specification: each tuple picks one element",
            {"data": _DATA, "indices": _indices([2, 2], [0, 0, 1, 1])},
            _answer(_tensor("float32", [2], [0.0, 3.0])),
        ),
        "batch_dims": (
            "Example 5: one batch dimension",
            {
                "data": _tensor("int32", [2, 2, 2], [0, 1, 2, 3, 4, 5, 6, 7]),
                "indices": _indices([2, 1], [1, 0]),
                "batch_dims": 1,
            },
            _answer(_tensor("int32", [2, 2], [2, 3, 4, 5])),
        ),
        "base64": (
            "int64 as base64, in and out",
            {
                "data": {"dtype": "int64", "shape": [2], "base64": "AQAAAAAAIAACAAAAAAAgAA=="},
                "indices": _indices([1, 1], [-1]),
                "output_encoding": "base64",
            },
            _answer({"dtype": "int64", "shape": [1], "base64": "AgAAAAAAIAA="}),
        ),
    },
    "gather": {
        "axis": (
            "Columns of a matrix",
            {"data": _DATA, "indices": _indices([1], [1]), "axis": 1},
            _answer(_tensor("float32", [2, 1], [1.0, 3.0])),
        ),
    },
    "gather_elements": {
        "elements": (
            "In each row of a matrix, the entries choose columns",
            {"data": _DATA, "indices": _indices([2, 2], [0, 0, 1, 0]), "axis": 1},
            _answer(_tensor("float32", [2, 2], [0.0, 0.0, 3.0, 2.0])),
        ),
    },
    "gather_block_quantized": {
        "rows": (
            "A row of 16 values of 4 bits, two in each byte, with one scale",
            {
                "data": _tensor("uint8", [2, 8], [*range(8), *range(16, 24)]),
                "indices": _indices([1], [1]),
                "scales": _tensor("float32", [2, 1], [1, 0.5]),
                "block_size": 16,
            },
            _answer(_tensor("float32", [1, 16], _DEQUANTIZED), "onnxruntime-1"),
        ),
    },
    "scatternd": {
        "elements": (
            "Example 1 of the specification: each tuple names the place of one update",
            {
                "data": _tensor("int32", [8], [1, 2, 3, 4, 5, 6, 7, 8]),
                "indices": _indices([4, 1], [4, 3, 1, 7]),
                "updates": _tensor("int32", [4], [9, 10, 11, 12]),
            },
            _answer(_tensor("int32", [8], [1, 11, 3, 10, 9, 6, 7, 12]), "onnx-18"),
        ),
        "add": (
            "Rows are added, two of them to the same row",
            {
                "data": _DATA,
                "indices": _indices([3, 1], [1, 0, 1]),
                "updates": _tensor("float32", [3, 2], [1, 2, 3, 4, 5, 6]),
                "reduction": "add",
            },
            _answer(_tensor("float32", [2, 2], [3.0, 5.0, 8.0, 11.0]), "onnx-18"),
        ),
    },
    "scatter_elements": {
        "axis": (
            "Example 2 of the specification: columns of a row",
            {
                "data": _tensor("float32", [1, 5], [1, 2, 3, 4, 5]),
                "indices": _indices([1, 2], [1, 3]),
                "updates": _tensor("float32", [1, 2], [1.1, 2.1]),
                "axis": 1,
            },
            _answer(_tensor("float32", [1, 5], [1.0, 1.1, 3.0, 2.1, 5.0]), "onnx-18"),
        ),
    },
}
"""The examples of each operator."""
_ROWS: Final = _tensor("float32", [3, 2], [1, 2, 10, 20, 100, 200])
_ANSWERED: Final = {"dialect": "onnx-13", "device": "cpu"}
GRADIENTS: Final[dict[str, Shown]] = {
    "gathernd_backward": {
        "dense": (
            "Row 3 was gathered twice",
            {"indices": _indices([3, 1], [3, 0, -1]), "grad_output": _ROWS, "data_shape": [4, 2]},
            {"grad_data": _tensor("float32", [4, 2], [10.0, 20.0, 0.0, 0.0, 0.0, 0.0, 101.0, 202.0]), **_ANSWERED},
        ),
        "sparse": (
            "Only the rows that were gathered, times 0.5",
            {
                "indices": _indices([3, 1], [3, 0, -1]),
                "grad_output": _ROWS,
                "data_shape": [4, 2],
                "lda_coeff": 0.5,
                "sparse": True,
            },
            {
                "grad_indices": _indices([2, 1], [0, 3]),
                "grad_values": _tensor("float32", [2, 2], [5.0, 10.0, 50.5, 101.0]),
                **_ANSWERED,
            },
        ),
    },
    "gather_backward": {
        "axis": (
            "Columns of a matrix",
            {
                "indices": _indices([3], [1, 1, 0]),
                "grad_output": _tensor("float32", [2, 3], [1, 2, 3, 4, 5, 6]),
                "data_shape": [2, 4],
                "axis": 1,
            },
            {"grad_data": _tensor("float32", [2, 4], [3.0, 3.0, 0.0, 0.0, 6.0, 9.0, 0.0, 0.0]), **_ANSWERED},
        ),
    },
}
"""The examples of each gradient."""
RESIDENT_NAME: Final = "items"
RESIDENT_DATA: Final = _tensor("float32", [3, 2], [0, 1, 10, 11, 20, 21])
"""The resident tensor that the following requests use."""
ETAG: Final = '"5d41402abc4b2a76b9719d911017c592-0"'
"""Placeholder for that tensor's ETag, which differs for each upload."""
_NEW_ROW: Final = _tensor("float32", [1, 2], [7, 8])
_READ: Final = {"data_etag": ETAG, "version": 1}
RESIDENT: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    operator: (
        {"data": {"tensor": RESIDENT_NAME}, "indices": indices, **others},
        _answer(_tensor("float32", [len(values) // 2, 2], values), "onnx-18" if "updates" in others else "onnx-13")
        | _READ,
    )
    for operator, indices, others, values in (
        ("gathernd", _indices([2, 1], [2, 0]), {}, [20.0, 21.0, 0.0, 1.0]),
        ("gather", _indices([2], [2, 0]), {}, [20.0, 21.0, 0.0, 1.0]),
        ("gather_elements", _indices([2, 2], [1, 0, 0, 0]), {"axis": 1}, [1.0, 0.0, 10.0, 10.0]),
        ("scatternd", _indices([1, 1], [2]), {"updates": _NEW_ROW}, [0.0, 1.0, 10.0, 11.0, 7.0, 8.0]),
        ("scatter_elements", _indices([1, 2], [2, 0]), {"updates": _NEW_ROW}, [0.0, 8.0, 10.0, 11.0, 7.0, 21.0]),
    )
} | {
    "gather_block_quantized": (
        {
            "data": _tensor("uint8", [3, 16], [152] * 48),
            "indices": _indices([1], [2]),
            "scales": {"tensor": RESIDENT_NAME},
            "block_size": 16,
        },
        _answer(_tensor("float32", [1, 32], [0.0, 20.0] * 8 + [0.0, 21.0] * 8), "onnxruntime-1"),
    )
}
"""For each operator, a request that refers to the tensor, and its response."""
_LOOKED_UP: Final = {"tensor": RESIDENT_NAME, **_READ}
LOOKUPS: Final[Shown] = {
    "rows": (
        "Single rows of two tensors, side by side",
        {
            "features": [
                {"tensor": RESIDENT_NAME, "indices": _indices([2], [2, 0])},
                {"tensor": RESIDENT_NAME, "indices": _indices([2], [1, 1])},
            ]
        },
        {
            "output": _tensor("float32", [2, 4], [20.0, 21.0, 10.0, 11.0, 0.0, 1.0, 10.0, 11.0]),
            "features": [_LOOKED_UP, _LOOKED_UP],
        },
    ),
    "bags": (
        "The sums of two bags of rows",
        {
            "features": [
                {
                    "tensor": RESIDENT_NAME,
                    "indices": _indices([3], [0, 2, 1]),
                    "offsets": _indices([2], [0, 2]),
                    "pooling": "sum",
                }
            ]
        },
        {
            "output": _tensor("float32", [2, 2], [20.0, 22.0, 10.0, 11.0]),
            "features": [_LOOKED_UP],
        },
    ),
}
"""Lookups in that tensor, and their responses."""
