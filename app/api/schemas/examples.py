"""Real requests and their real answers, shown in the OpenAPI file. A test sends each and compares."""

from __future__ import annotations

from typing import Any, Final

_DATA: Final = {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]}


def _indices(shape: list[int], values: list[Any]) -> dict[str, Any]:
    return {"dtype": "int64", "shape": shape, "values": values}


_DEQUANTIZED: Final = [half for low in range(8) for half in (low / 2 - 4, -3.5)]
REQUESTS: Final[dict[str, dict[str, tuple[str, dict[str, Any], dict[str, Any]]]]] = {
    "gathernd": {
        "elements": (
            "Example 1 of the specification: each tuple picks one element",
            {"data": _DATA, "indices": _indices([2, 2], [0, 0, 1, 1])},
            {
                "output": {"dtype": "float32", "shape": [2], "values": [0.0, 3.0]},
                "dialect": "onnx-13",
                "device": "cpu",
            },
        ),
        "batch_dims": (
            "Example 5: one batch dimension",
            {
                "data": {"dtype": "int32", "shape": [2, 2, 2], "values": [0, 1, 2, 3, 4, 5, 6, 7]},
                "indices": _indices([2, 1], [1, 0]),
                "batch_dims": 1,
            },
            {
                "output": {"dtype": "int32", "shape": [2, 2], "values": [2, 3, 4, 5]},
                "dialect": "onnx-13",
                "device": "cpu",
            },
        ),
        "base64": (
            "int64 as base64, in and out",
            {
                "data": {"dtype": "int64", "shape": [2], "base64": "AQAAAAAAIAACAAAAAAAgAA=="},
                "indices": _indices([1, 1], [-1]),
                "output_encoding": "base64",
            },
            {
                "output": {"dtype": "int64", "shape": [1], "base64": "AgAAAAAAIAA="},
                "dialect": "onnx-13",
                "device": "cpu",
            },
        ),
    },
    "gather": {
        "axis": (
            "Columns of a matrix",
            {"data": _DATA, "indices": _indices([1], [1]), "axis": 1},
            {
                "output": {"dtype": "float32", "shape": [2, 1], "values": [1.0, 3.0]},
                "dialect": "onnx-13",
                "device": "cpu",
            },
        ),
    },
    "gather_elements": {
        "elements": (
            "In each row of a matrix, the entries choose columns",
            {"data": _DATA, "indices": _indices([2, 2], [0, 0, 1, 0]), "axis": 1},
            {
                "output": {"dtype": "float32", "shape": [2, 2], "values": [0.0, 0.0, 3.0, 2.0]},
                "dialect": "onnx-13",
                "device": "cpu",
            },
        ),
    },
    "gather_block_quantized": {
        "rows": (
            "A row of 16 values of 4 bits, two in each byte, with one scale",
            {
                "data": {"dtype": "uint8", "shape": [2, 8], "values": [*range(8), *range(16, 24)]},
                "indices": _indices([1], [1]),
                "scales": {"dtype": "float32", "shape": [2, 1], "values": [1, 0.5]},
                "block_size": 16,
            },
            {
                "output": {"dtype": "float32", "shape": [1, 16], "values": _DEQUANTIZED},
                "dialect": "onnxruntime-1",
                "device": "cpu",
            },
        ),
    },
    "scatternd": {
        "elements": (
            "Example 1 of the specification: each tuple names the place of one update",
            {
                "data": {"dtype": "int32", "shape": [8], "values": [1, 2, 3, 4, 5, 6, 7, 8]},
                "indices": _indices([4, 1], [4, 3, 1, 7]),
                "updates": {"dtype": "int32", "shape": [4], "values": [9, 10, 11, 12]},
            },
            {
                "output": {"dtype": "int32", "shape": [8], "values": [1, 11, 3, 10, 9, 6, 7, 12]},
                "dialect": "onnx-18",
                "device": "cpu",
            },
        ),
        "add": (
            "Rows are added, two of them to the same row",
            {
                "data": _DATA,
                "indices": _indices([3, 1], [1, 0, 1]),
                "updates": {"dtype": "float32", "shape": [3, 2], "values": [1, 2, 3, 4, 5, 6]},
                "reduction": "add",
            },
            {
                "output": {"dtype": "float32", "shape": [2, 2], "values": [3.0, 5.0, 8.0, 11.0]},
                "dialect": "onnx-18",
                "device": "cpu",
            },
        ),
    },
    "scatter_elements": {
        "axis": (
            "Example 2 of the specification: columns of a row",
            {
                "data": {"dtype": "float32", "shape": [1, 5], "values": [1, 2, 3, 4, 5]},
                "indices": _indices([1, 2], [1, 3]),
                "updates": {"dtype": "float32", "shape": [1, 2], "values": [1.1, 2.1]},
                "axis": 1,
            },
            {
                "output": {"dtype": "float32", "shape": [1, 5], "values": [1.0, 1.1, 3.0, 2.1, 5.0]},
                "dialect": "onnx-18",
                "device": "cpu",
            },
        ),
    },
}
RESIDENT_NAME: Final = "items"
RESIDENT_DATA: Final[dict[str, Any]] = {"dtype": "float32", "shape": [3, 2], "values": [0, 1, 10, 11, 20, 21]}
"""The resident tensor that the following requests are about."""
ETAG: Final = '"5d41402abc4b2a76b9719d911017c592-0"'
"""Stands for the ETag of that tensor, which is another for each upload."""
_NEW_ROW: Final = {"dtype": "float32", "shape": [1, 2], "values": [7, 8]}
RESIDENT: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    operator: (
        {"data": {"tensor": RESIDENT_NAME}, "indices": indices, **others},
        {
            "output": {"dtype": "float32", "shape": [len(values) // 2, 2], "values": values},
            "dialect": "onnx-18" if "updates" in others else "onnx-13",
            "device": "cpu",
            "data_etag": ETAG,
            "version": 1,
        },
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
            "data": {"dtype": "uint8", "shape": [3, 16], "values": [152] * 48},
            "indices": _indices([1], [2]),
            "scales": {"tensor": RESIDENT_NAME},
            "block_size": 16,
        },
        {
            "output": {"dtype": "float32", "shape": [1, 32], "values": [0.0, 20.0] * 8 + [0.0, 21.0] * 8},
            "dialect": "onnxruntime-1",
            "device": "cpu",
        },
    )
}
"""For each operator a request that names it, and the answer, whose ETag is another for each upload."""
_LOOKED_UP: Final = {"tensor": RESIDENT_NAME, "data_etag": ETAG, "version": 1}
LOOKUPS: Final[dict[str, tuple[str, dict[str, Any], dict[str, Any]]]] = {
    "rows": (
        "Single rows of two tensors, side by side",
        {
            "features": [
                {"tensor": RESIDENT_NAME, "indices": _indices([2], [2, 0])},
                {"tensor": RESIDENT_NAME, "indices": _indices([2], [1, 1])},
            ]
        },
        {
            "output": {
                "dtype": "float32",
                "shape": [2, 4],
                "values": [20.0, 21.0, 10.0, 11.0, 0.0, 1.0, 10.0, 11.0],
            },
            "features": [_LOOKED_UP, _LOOKED_UP],
        },
    ),
    "bags": (
        "Two bags of rows, of which the sums are taken",
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
            "output": {"dtype": "float32", "shape": [2, 2], "values": [20.0, 22.0, 10.0, 11.0]},
            "features": [_LOOKED_UP],
        },
    ),
}
"""Lookups in that tensor, and their answers."""
