"""The request of `benchmarks.lookup` as Triton's Python backend with torch answers it; see `fastapi_torch`."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as backend

ROWS, WIDTH, BAGS = (int(os.environ[name]) for name in ("LOOKUP_ROWS", "LOOKUP_WIDTH", "LOOKUP_BAGS"))
SIZES = [int(size) for size in os.environ["LOOKUP_SIZES"].split(",")]
TABLES = [torch.rand(ROWS, WIDTH) for _ in SIZES]
STARTS = np.cumsum([0, *(BAGS * (1 + size) for size in SIZES)]).tolist()
torch.set_num_threads(len(os.sched_getaffinity(0)))


class TritonPythonModel:
    """The class that the backend looks for."""

    def execute(self, requests: list[Any]) -> list[Any]:
        """An answer for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        words = torch.from_numpy(backend.get_input_tensor_by_name(request, "words").as_numpy())
        bags = []
        for table, (first, end) in zip(TABLES, pairwise(STARTS), strict=True):
            offsets, indices = words[first : first + BAGS], words[first + BAGS : end]
            bags.append(torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum"))
        return backend.InferenceResponse([backend.Tensor("output", torch.cat(bags, 1).numpy())])
