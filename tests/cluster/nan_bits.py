"""The answers of lookups with the bits of one NaN for all: a sum of two NaNs may have the bits of either."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import ml_dtypes
import numpy as np

_FLOATS: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("float16", "F16", "FP16"), np.dtype(np.float16)),
    **dict.fromkeys(("bfloat16", "BF16"), np.dtype(ml_dtypes.bfloat16)),
    **dict.fromkeys(("float32", "F32", "FP32"), np.dtype(np.float32)),
    **dict.fromkeys(("float64", "F64", "FP64"), np.dtype(np.float64)),
}
"""By their names in JSON, safetensors and the inference protocol."""


def with_one_nan(answer: httpx.Response) -> bytes:
    """The body, its NaNs replaced by one."""
    content = answer.content
    if answer.headers.get("content-type") == "application/x-safetensors":
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        parts = [(one["dtype"], *one["data_offsets"]) for name, one in header.items() if name != "__metadata__"]
        return content[:start] + _replaced(content[start:], parts)
    size = answer.headers.get("inference-header-content-length")
    if size is not None:
        start, parts, end = int(size), [], 0
        for one in json.loads(content[:start])["outputs"]:
            begin, end = end, end + one.get("parameters", {}).get("binary_data_size", 0)
            parts.append((one["datatype"], begin, end))
        return content[:start] + _replaced(content[start:], parts)
    for dtype, text in _in_base64(json.loads(content)):
        items = base64.b64decode(text)
        replaced = base64.b64encode(_replaced(items, [(dtype, 0, len(items))]))
        content = content.replace(text.encode(), replaced)
    return content


def _replaced(items: bytes, parts: list[tuple[str, int, int]]) -> bytes:
    made = bytearray(items)
    for dtype, begin, end in parts:
        if dtype in _FLOATS:
            part = np.frombuffer(made, np.uint8)[begin:end].copy().view(_FLOATS[dtype])
            with np.errstate(invalid="ignore"):  # of a signalling NaN
                part[np.isnan(part)] = np.nan
            made[begin:end] = part.tobytes()
    return bytes(made)


def _in_base64(document: Any) -> Iterator[tuple[str, str]]:
    """The types and texts of all items in base64."""
    if isinstance(document, dict):
        if "base64" in document:
            yield document["dtype"], document["base64"]
        for one in document.values():
            yield from _in_base64(one)
    elif isinstance(document, list):
        for one in document:
            yield from _in_base64(one)
