"""A GatherND of pairs with inline data, in NumPy, for Triton's Python backend."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as backend


class TritonPythonModel:
    """The class that the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """An answer for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        data, indices = (backend.get_input_tensor_by_name(request, name).as_numpy() for name in ("data", "indices"))
        return backend.InferenceResponse([backend.Tensor("output", data[tuple(indices.T)])])
