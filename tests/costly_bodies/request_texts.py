"""The parts that costly requests of scatters, gradients and lookups are written from."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Final

from tests.costly_bodies.gathers import DATATYPES

ONE: Final = '{"dtype":"int64","shape":[1],"values":[0]}'
TUPLE: Final = '{"dtype":"int64","shape":[1,1],"values":[0]}'
EMPTY: Final = '{"dtype":"I64","shape":[0],"data_offsets":[0,0]}'
LONG_NUMBERS: Final[Mapping[str, Callable[[int], str]]] = {
    "digits": lambda size: "1" * size,
    "fraction": lambda size: "0." + "0" * size + "1",
    "zeros and an exponent": lambda size: "1" + "0" * size + f"e-{size}",
    "exponent": lambda size: "1e" + "0" * size + "1",
}


def tensor(dtype: str, shape: str, values: str) -> str:
    """A tensor of the native JSON."""
    return f'{{"dtype":"{dtype}","shape":{shape},"values":{values}}}'


def elements(indices: str, updates: str, rest: str = "") -> bytes:
    """A ScatterElements; `rest` has its own comma."""
    data = tensor("float32", "[1]", "[1]")
    return f'{{"data":{data},"indices":{indices},"updates":{updates}{rest}}}'.encode()


def backward(indices: str, grad_output: str, rest: str = ',"data_shape":[9]') -> bytes:
    """The gradient of a GatherND."""
    return f'{{"indices":{indices},"grad_output":{grad_output}{rest}}}'.encode()


def lookup(arrays: str, rest: str = "") -> bytes:
    """A lookup of one feature with these members, which have their own commas."""
    return f'{{"features":[{{"tensor":"a"{arrays}}}]{rest}}}'.encode()


def v2_input(name: str, dtype: str, count: int, values: str) -> str:
    """An input of the inference protocol."""
    return f'{{"name":"{name}","datatype":"{DATATYPES[dtype]}","shape":[{count}],"data":{values}}}'


def v2_elements(indices: str, updates: str, parameters: str = "{}") -> bytes:
    """A ScatterElements of the inference protocol."""
    inputs = f"{v2_input('data', 'float32', 1, '[1]')},{indices},{updates}"
    return f'{{"inputs":[{inputs}],"parameters":{parameters}}}'.encode()


def v2_lookup(inputs: str, document: str) -> bytes:
    """A lookup of the inference protocol; `document` is its parameter."""
    return f'{{"inputs":[{inputs}],"parameters":{{"lookup":{json.dumps(document)}}}}}'.encode()


ONE_UPDATE: Final = tensor("float32", "[1]", "[1]")
V2_INDICES: Final = v2_input("indices", "int64", 1, "[0]")
V2_UPDATES: Final = v2_input("updates", "float32", 1, "[1]")
ONE_TABLE: Final = '{"tensor":"a"}'
POOLED_TABLE: Final = '{"tensor":"a","pooling":"sum"}'
POOLED: Final = f'{{"features":[{POOLED_TABLE}]}}'
PLAIN: Final = f'{{"features":[{ONE_TABLE}]}}'

MOST_FEATURES: Final = 1024
"""Of a lookup, unless GATHERND_MAX_FEATURES says otherwise."""


def framed(header: str, raw: bytes = b"") -> bytes:
    """A safetensors body."""
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + raw
