"""Real requests for gradients and their real answers, shown in the OpenAPI file. A test sends each and compares."""

from __future__ import annotations

from typing import Any, Final


def _tensor(dtype: str, shape: list[int], values: list[float]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "values": values}


_ROWS: Final = _tensor("float32", [3, 2], [1, 2, 10, 20, 100, 200])
_ANSWERED: Final = {"dialect": "onnx-13", "device": "cpu"}
REQUESTS: Final[dict[str, dict[str, tuple[str, dict[str, Any], dict[str, Any]]]]] = {
    "gathernd_backward": {
        "dense": (
            "Row 3 was gathered twice",
            {"indices": _tensor("int64", [3, 1], [3, 0, -1]), "grad_output": _ROWS, "data_shape": [4, 2]},
            {"grad_data": _tensor("float32", [4, 2], [10.0, 20.0, 0.0, 0.0, 0.0, 0.0, 101.0, 202.0]), **_ANSWERED},
        ),
        "sparse": (
            "The rows that were gathered alone, times 0.5",
            {
                "indices": _tensor("int64", [3, 1], [3, 0, -1]),
                "grad_output": _ROWS,
                "data_shape": [4, 2],
                "lda_coeff": 0.5,
                "sparse": True,
            },
            {
                "grad_indices": _tensor("int64", [2, 1], [0, 3]),
                "grad_values": _tensor("float32", [2, 2], [5.0, 10.0, 50.5, 101.0]),
                **_ANSWERED,
            },
        ),
    },
    "gather_backward": {
        "axis": (
            "Columns of a matrix",
            {
                "indices": _tensor("int64", [3], [1, 1, 0]),
                "grad_output": _tensor("float32", [2, 3], [1, 2, 3, 4, 5, 6]),
                "data_shape": [2, 4],
                "axis": 1,
            },
            {"grad_data": _tensor("float32", [2, 4], [3.0, 3.0, 0.0, 0.0, 6.0, 9.0, 0.0, 0.0]), **_ANSWERED},
        ),
    },
}
"""For each gradient, by the name of the example: what it shows, the request, and the answer."""
