"""A gather service as one writes it in an hour: FastAPI, pydantic lists, NumPy. It takes our JSON requests.

It checks little and bounds nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel


class TensorBody(BaseModel):
    """A tensor, its values flat."""

    dtype: str
    shape: list[int]
    values: list[float]


class GatherBody(BaseModel):
    """A request."""

    data: TensorBody
    indices: TensorBody
    batch_dims: int = 0


class AnswerBody(BaseModel):
    """An answer."""

    output: TensorBody


app = FastAPI()


@app.get("/readyz")
def ready() -> dict[str, bool]:
    """Ready once it answers."""
    return {"ready": True}


def _array(tensor: TensorBody) -> np.ndarray[Any, Any]:
    return np.array(tensor.values, dtype=tensor.dtype).reshape(tensor.shape)


@app.post("/gathernd")
def gathernd(body: GatherBody) -> AnswerBody:
    """GatherND without batch_dims, which the measured requests do not use."""
    if body.batch_dims:
        raise HTTPException(501, "batch_dims")
    data, indices = _array(body.data), _array(body.indices).astype(np.int64)
    try:
        output = data[tuple(np.moveaxis(indices, -1, 0))]
    except IndexError as error:
        raise HTTPException(422, str(error)) from error
    return AnswerBody(
        output=TensorBody(dtype=body.data.dtype, shape=list(output.shape), values=output.ravel().tolist())
    )
