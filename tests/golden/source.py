"""Items and bodies for the golden corpus: the same bytes with every version of Python and on every CPU."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

PACKED = {
    "bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "bfloat16": "", "float32": "f", "float64": "d", "complex64": "ff",
    "complex128": "dd", "string": "",
}  # fmt: skip
TYPES = tuple(PACKED)
SHORT = {name: "BF16" if name == "bfloat16" else f"{name[0].upper()}{name.strip('uintfloa')}" for name in TYPES}
SHORT |= {"bool": "BOOL", "complex64": "C64", "string": "STRING"}
LONG = {name: name.upper().replace("FLOAT", "FP") for name in TYPES} | {"bfloat16": "BF16", "string": "BYTES"}
TEXTS = ("", "a", "ä", "日本", "two words", '"', "\\", "\n")


class Items:
    """Items made of `random()` alone, the one method of Python's generator that no version may change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def of(self, dtype: str, count: int) -> list[Any]:
        """Items in the form of JSON, each of which every float type holds exactly."""
        return [self._item(dtype) for _ in range(count)]

    def _below(self, end: int) -> int:
        return int(self._random() * end)

    def _item(self, dtype: str) -> Any:
        if dtype == "bool":
            return self._random() < 0.5
        if dtype == "string":
            return TEXTS[self._below(len(TEXTS))]
        if dtype.startswith("complex"):
            return [self._item("float32"), self._item("float32")]
        if "float" in dtype:
            odd = ("NaN", "Infinity", "-Infinity", -0.0)
            return odd[self._below(len(odd))] if self._random() < 0.05 else (self._below(257) - 128) / 8
        return self._below(100) - (0 if dtype.startswith("u") else 50)


def tensor(dtype: str, shape: Sequence[int], values: list[Any]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "values": values}


def octets(given: dict[str, Any]) -> bytes:
    """Little-endian bytes of the items; strings behind their lengths."""
    return b"".join(_pack(given["dtype"], item) for item in given["values"])


def _pack(dtype: str, item: Any) -> bytes:
    if dtype == "string":
        text = str(item).encode()
        return struct.pack("<I", len(text)) + text
    if dtype == "bfloat16":
        return struct.pack("<f", float(item))[2:]
    parts = item if isinstance(item, list) else [item]
    numbers = [float(part) for part in parts] if "float" in dtype or "complex" in dtype else parts
    made: bytes = struct.pack(f"<{PACKED[dtype]}", *numbers)
    return made


def safetensors(arrays: dict[str, dict[str, Any]], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors body."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end, blobs = 0, [octets(given) for given in arrays.values()]
    for (name, given), blob in zip(arrays.items(), blobs, strict=True):
        word = SHORT.get(given["dtype"], given["dtype"])
        header[name] = {"dtype": word, "shape": given["shape"], "data_offsets": [end, end + len(blob)]}
        end += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def protocol(
    arrays: dict[str, dict[str, Any]], parameters: dict[str, Any], *, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Body and fields of an infer request."""
    inputs, blobs = [], []
    for name, given in arrays.items():
        one = {"name": name, "datatype": LONG.get(given["dtype"], given["dtype"]), "shape": given["shape"]}
        if binary:
            blobs.append(octets(given))
            inputs.append(one | {"parameters": {"binary_data_size": len(blobs[-1])}})
        else:
            inputs.append(one | {"data": given["values"]})
    text = json.dumps({"inputs": inputs, "parameters": parameters | {"binary_data_output": binary}}).encode()
    return b"".join((text, *blobs)), {"inference-header-content-length": str(len(text))} if binary else {}
