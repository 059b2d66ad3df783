"""The request of `benchmarks.lookup` as plain FastAPI with torch answers it.

The body is int64: of each table the offsets of its bags, then its indices, whose number is known. The answer is the
bytes of the joined float32 output.
"""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import torch
from fastapi import FastAPI, Request, Response

ROWS, WIDTH, BAGS = (int(os.environ[name]) for name in ("LOOKUP_ROWS", "LOOKUP_WIDTH", "LOOKUP_BAGS"))
SIZES = [int(size) for size in os.environ["LOOKUP_SIZES"].split(",")]
TABLES = [torch.rand(ROWS, WIDTH) for _ in SIZES]
STARTS = np.cumsum([0, *(BAGS * (1 + size) for size in SIZES)]).tolist()

torch.set_num_threads(len(os.sched_getaffinity(0)))
app = FastAPI()


@app.get("/readyz")
def ready() -> str:
    """The tables are made before the first request is taken."""
    return "ready"


@app.post("/lookup")
async def lookup(request: Request) -> Response:
    """The bags of all tables, side by side."""
    words = torch.from_numpy(np.frombuffer(await request.body(), np.int64).copy())
    bags = []
    for table, (first, end) in zip(TABLES, pairwise(STARTS), strict=True):
        offsets, indices = words[first : first + BAGS], words[first + BAGS : end]
        bags.append(torch.nn.functional.embedding_bag(indices, table, offsets, mode="sum"))
    return Response(torch.cat(bags, 1).numpy().tobytes(), media_type="application/octet-stream")
