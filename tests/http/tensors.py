"""Resident tensors over HTTP in a line each."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from tests.http.forms import int64
from tests.http.server import Server

RAW = "application/octet-stream"
NPY = "application/x-npy"
SAFETENSORS = "application/x-safetensors"
FORM = "application/x-www-form-urlencoded"


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npy_of_python_2(array: NDArray[Any]) -> bytes:
    """An npy file as Python 2 wrote it: an L behind each size, and a header of version 1.0 that ends at 16 bytes."""
    fortran = array.ndim > 1 and array.flags.f_contiguous and not array.flags.c_contiguous
    shape = "".join(f"{size}L, " for size in array.shape)
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': {fortran}, 'shape': ({shape}), }}"
    header = text + " " * (-(len(text) + 11) % 16) + "\n"
    items = array.tobytes("F" if fortran else "C")
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + items


def put_raw(client: httpx.Client, name: str, array: NDArray[Any], **headers: str) -> httpx.Response:
    query = {"dtype": array.dtype.name, "shape": ",".join(map(str, array.shape))}
    return client.put(
        f"/tensors/{name}", params=query, content=array.tobytes(), headers={"content-type": RAW, **headers}
    )


def put_strings(client: httpx.Client, name: str, texts: list[str]) -> httpx.Response:
    body = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    query = {"dtype": "string", "shape": str(len(texts))}
    return client.put(f"/tensors/{name}", params=query, content=body, headers={"content-type": RAW})


def save(**tensors: NDArray[Any]) -> bytes:
    made: bytes = safetensors.numpy.save(tensors)
    return made


def scatter_body(indices: Any, updates: NDArray[Any], reduction: str = "none") -> dict[str, Any]:
    where = np.asarray(indices, np.int64)
    return {
        "indices": int64(list(where.shape), where.ravel().tolist()),
        "updates": {"dtype": updates.dtype.name, "shape": list(updates.shape), "values": updates.ravel().tolist()},
        "reduction": reduction,
    }


def look_up(client: httpx.Client, name: str, rows: list[int]) -> httpx.Response:
    return client.post("/gathernd", json={"data": {"tensor": name}, "indices": int64([len(rows), 1], rows)})


@contextmanager
def dying(start: Callable[..., AbstractContextManager[Server]], *flags: str, **options: Any) -> Iterator[Server]:
    """A server that is killed within the block."""
    try:
        with start(*flags, **options) as server:
            yield server
    except AssertionError as end:
        if "exit code -9" not in str(end):
            raise
    else:
        raise AssertionError("the server was not killed")


def error(answer: httpx.Response, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    """The error body, which must be this one."""
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["code"]) == (status, code), answer.text
    if pointer is not None:
        assert found["errors"][0]["pointer"] == pointer, found
    return found
