"""Lookups for the tests: features in the forms of the formats, and what they answer by a plain loop in index order."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.http.forms import INTEGERS, octets, tensor

SHORT = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64,
         "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_, "I8": np.int8}  # fmt: skip
NAMES = {np.dtype(kind): name for name, kind in SHORT.items()}


@dataclass
class Given:
    """A feature: its tensor's name, and its arrays as NumPy has them."""

    tensor: str
    indices: Any
    offsets: Any = None
    weights: Any = None
    pooling: str = "none"

    def arrays(self) -> dict[str, NDArray[Any]]:
        index_type = self.indices.dtype if isinstance(self.indices, np.ndarray) else np.dtype(np.int64)
        found = {"indices": np.asarray(self.indices, index_type)}
        if self.offsets is not None:
            found["offsets"] = np.asarray(self.offsets, index_type)
        if self.weights is not None:
            found["weights"] = np.asarray(self.weights)
        return found

    def fields(self) -> dict[str, Any]:
        return {"tensor": self.tensor} | ({} if self.pooling == "none" else {"pooling": self.pooling})


def of_array(array: NDArray[Any]) -> dict[str, Any]:
    """The JSON form of an array."""
    return tensor(
        array.dtype.name,
        array.shape,
        array.astype(np.float64).ravel().tolist() if array.dtype.name not in INTEGERS else array.ravel().tolist(),
    )


def as_json(features: list[Given], **more: Any) -> dict[str, Any]:
    listed = [given.fields() | {name: of_array(array) for name, array in given.arrays().items()} for given in features]
    return {"features": listed, **more}


def as_safetensors(features: list[Given], **more: Any) -> bytes:
    arrays = {
        f"{number}.{name}": array for number, given in enumerate(features) for name, array in given.arrays().items()
    }
    return saved(arrays, {"features": [given.fields() for given in features], **more})


def saved(arrays: dict[str, NDArray[Any]], lookup: Any) -> bytes:
    """A safetensors body, with the text `lookup`: JSON of what is given, unless it is a text already."""
    header: dict[str, Any] = {"__metadata__": {"lookup": lookup if isinstance(lookup, str) else json.dumps(lookup)}}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values())


def loaded(body: bytes) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays of a safetensors answer, and its text `lookup`."""
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    lookup = json.loads(header.pop("__metadata__")["lookup"])
    arrays = {}
    for name, told in header.items():
        begin, end = (8 + size + place for place in told["data_offsets"])
        arrays[name] = np.frombuffer(body[begin:end], SHORT[told["dtype"]]).reshape(told["shape"])
    return arrays, lookup


def looped(table: NDArray[Any], given: Given) -> NDArray[Any]:
    """What a feature gives: its rows, or of each bag the sum, mean or maximum, in float32, rounded once."""
    arrays = given.arrays()
    if given.pooling == "none":
        found: NDArray[Any] = table[arrays["indices"]]
        return found
    wide = np.float64 if table.dtype == np.float64 else np.float32
    indices, rows = arrays["indices"].tolist(), []
    for begin, end in pairwise([*arrays["offsets"].tolist(), len(indices)]):
        total = np.zeros(table.shape[1:], wide)
        for at in range(begin, end):
            row = table[indices[at]].astype(wide)
            if given.pooling == "max":
                total = row if at == begin else np.where((total >= row) | np.isnan(total), total, row)
            elif given.weights is None:
                total = total + row
            else:
                total = total + row * arrays["weights"][at].astype(wide)
        if given.pooling == "mean" and end > begin:
            total = total / wide(end - begin)
        rows.append(total.astype(table.dtype))
    return np.array(rows, table.dtype).reshape(len(rows), *table.shape[1:])


def read_output(output: dict[str, Any]) -> NDArray[Any]:
    """A tensor of a JSON answer."""
    name = output["dtype"]
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else name
    return np.frombuffer(octets(name, output["values"]), kind).reshape(output["shape"])
