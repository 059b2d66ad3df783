"""`POST /scatternd`, `/scatter_elements` and their models: known answers in each format, resident data, refusals."""

from __future__ import annotations

import httpx
import numpy as np
from safetensors.numpy import load, save

from app.tensors.dtypes import DTYPES
from tests.for_each import for_each

ND, ELEMENTS = "/scatternd", "/scatter_elements"
SAFETENSORS = {"content-type": "application/x-safetensors"}


UNKNOWN_TO_NUMPY = ("string", "bfloat16", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
"""Types that safetensors does not read or write with NumPy."""


@for_each("dtype", [name for name in DTYPES if name not in UNKNOWN_TO_NUMPY])
def test_large_scatters_of_every_type(client: httpx.Client, dtype: str) -> None:
    """More than a thread of the pool takes, on every route: the bits of a plain loop."""
    rng = np.random.default_rng(2)
    kind = DTYPES[dtype].numpy
    data, updates = rng.integers(0, 2, (3000, 40)).astype(kind), rng.integers(0, 2, (4000, 40)).astype(kind)
    indices = rng.integers(-3000, 3000, (4000, 1))
    expected = data.copy()
    for (row,), update in zip(indices.tolist(), updates, strict=True):
        expected[row] = update
    content = save({"data": data, "indices": indices, "updates": updates})
    answer = client.post(ND, content=content, headers=SAFETENSORS)
    assert load(answer.content)["output"].tobytes() == expected.tobytes()
    if DTYPES[dtype].kind in ("int", "uint", "float"):
        columns = rng.integers(0, 40, (3000, 50))
        more = rng.integers(0, 3, (3000, 50)).astype(kind)
        expected = data.copy()
        for column in range(50):
            expected[np.arange(3000), columns[:, column]] += more[:, column]
        content = save({"data": data, "indices": columns, "updates": more})
        answer = client.post(ELEMENTS, params={"axis": 1, "reduction": "add"}, content=content, headers=SAFETENSORS)
        assert load(answer.content)["output"].tobytes() == expected.tobytes()
