"""Requests that make a service hold much: what one is, and its parts (see `test_memory_budget`)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MIB = 1 << 20
BINARY = "Content-Type: application/x-safetensors"
JSON = "Content-Type: application/json"
Check = Callable[[bytes], bool]


@dataclass
class Ask:
    """One request: its path, body and header fields; `right` judges the body of an answer with status 200.

    `refusals` are codes that it may meet besides those of a full or too small budget.
    """

    path: str
    body: bytes
    fields: tuple[str, ...] = (JSON,)
    right: Check = lambda body: True
    refusals: tuple[str, ...] = ()
    chunked: bool = False


def ordered(count: int, dtype: Any = np.uint8) -> Any:
    return (np.arange(count) % 256).astype(dtype)


def texts(count: int, wide: bool) -> list[str]:
    return [("\N{GRINNING FACE}" if wide else "") + f"some text {number}" for number in range(count)]


def json_call(data: Any, indices: Any, **more: Any) -> bytes:
    return json.dumps({"data": data, "indices": indices, **more}, ensure_ascii=False).encode()


def deflated(ask: Ask) -> Ask:
    fields = (*ask.fields, "Content-Encoding: gzip", "Accept-Encoding: gzip")
    return Ask(ask.path, gzip.compress(ask.body, 1), fields, ask.right, ask.refusals)


def in_chunks(ask: Ask) -> Ask:
    return Ask(ask.path, ask.body, ask.fields, ask.right, ask.refusals, chunked=True)
