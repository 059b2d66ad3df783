"""What users write with the generated Python client for resident tensors; prints what it got, as JSON."""

from __future__ import annotations

import json
import struct
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

from generated import Client
from generated.api.tensors import get_tensor, put_alias, put_tensor, scatter_tensor, tensor_content
from generated.models import (
    AliasBody,
    AliasRequest,
    PutTensorDtype,
    ResidentTensor,
    ScatterAnswer,
    ScatterRequest,
    Tensor,
    TensorDtype,
)
from generated.types import UNSET, File, Unset

ITEMS = struct.pack("<4f", 1, 2, 3, 4)


def put(client: Client, body: bytes, dtype: PutTensorDtype | Unset, shape: str | Unset) -> ResidentTensor:
    file = File(payload=BytesIO(body))
    answer = put_tensor.sync("resident", client=client, body=file, dtype=dtype, shape=shape, keep=2)
    assert isinstance(answer, ResidentTensor), answer
    return answer


def content(client: Client, name: str, rows: str | Unset = UNSET) -> str:
    answer = tensor_content.sync(name, client=client, rows=rows)
    assert isinstance(answer, File), answer
    return answer.payload.read().hex()


def scatter(client: Client, name: str, key: str) -> str:
    """Add to the first item; the ETag of what came of it."""
    body = ScatterRequest(
        indices=Tensor(dtype=TensorDtype.INT64, shape=[1, 2], values=[0, 0]),
        updates=Tensor(dtype=TensorDtype.FLOAT32, shape=[1], values=["NaN"]),
    )
    answer = scatter_tensor.sync(name, client=client, body=body, idempotency_key=key)
    assert isinstance(answer, ScatterAnswer), answer
    return answer.etag


def main(url: str, npy: str) -> None:
    with Client(base_url=url) as client:
        raw = put(client, ITEMS, PutTensorDtype.FLOAT32, "2,2")
        packed = put(client, Path(npy).read_bytes(), UNSET, UNSET)
        alias = put_alias.sync("served", client=client, body=AliasRequest(tensor=f"resident@{raw.version}"))
        assert isinstance(alias, AliasBody), alias
        unchanged = get_tensor.sync_detailed("resident", client=client, if_none_match=packed.etag)
        got: dict[str, Any] = {
            "raw": [raw.dtype.value, raw.shape],
            "npy": [packed.dtype.value, packed.shape, packed.version - raw.version],
            "an old version": content(client, f"resident@{raw.version}"),
            "rows": content(client, "resident", "1:2"),
            "unchanged": [unchanged.status_code.value, unchanged.headers["etag"] == packed.etag],
            "the same scatter twice": scatter(client, "served", "a") == scatter(client, "served", "a"),
            "an alias": content(client, "served"),
        }
    sys.stdout.write(json.dumps(got))


main(*sys.argv[1:])
