"""Lookups of rows in the table of `benchmarks.work`, in NumPy, for Triton's Python backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as backend

TABLE = np.random.default_rng(7).random((200_000, 64), dtype=np.float32)


class TritonPythonModel:
    """The class that the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """An answer for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        indices = backend.get_input_tensor_by_name(request, "indices").as_numpy()
        return backend.InferenceResponse([backend.Tensor("output", TABLE[indices[:, 0]])])
