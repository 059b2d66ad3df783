"""Guess which element type an unknown name means, for hints in errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.near_name import MOST_CHARACTERS, near_name, replacement_text
from app.tensors.dtypes import BY_OIP, BY_SAFETENSORS, DTYPES

_USUAL_NAMES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "boolean": "bool",
    "byte": "uint8",
    "bytes": "string",
    "char": "int8",
    "complex": "complex128",
    "double": "float64",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "float": "float32",
    "half": "float16",
    "int": "int64",
    "integer": "int64",
    "long": "int64",
    "number": "float64",
    "object": "string",
    "short": "int16",
    "single": "float32",
    "str": "string",
    "text": "string",
    "ubyte": "uint8",
    "uint": "uint64",
    "ulong": "uint64",
    "ushort": "uint16",
    "utf8": "string",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
    "v2": "bfloat16",
    "i4": "int32",
    "u4": "uint32",
    "?": "bool",
}
"""Type names from other languages and libraries. i8 and u8 are absent because they count bits, as in Rust and
safetensors.
"""
_PREFIXES: Final = ("torch.", "np.", "numpy.", "tf.", "jnp.")
_POSITIONS: Final = ("indices", "offsets")
POSITION_TYPE: Final = "int64"
"""The type of positions that every operator and dialect accepts."""


def holds_positions(name: str) -> bool:
    """Return whether a tensor with this name, such as `indices`, `features/0/offsets` or `0.indices`, holds
    positions.
    """
    return name.replace("/", ".").rpartition(".")[2] in _POSITIONS


def near_dtype(given: str) -> str | None:
    """Return the closest match for `given` in `DTYPES`, or None if nothing is close."""
    if len(given) > MOST_CHARACTERS:
        return None
    name = given.strip()
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    if name[:1] in ("<", ">", "=", "|"):  # NumPy codes, which count bytes
        known = next((row.name for row in DTYPES.values() if row.npy == name[1:]), None)
        return known or _USUAL_NAMES.get(name[1:].lower())
    row = BY_OIP.get(name.upper()) or BY_SAFETENSORS.get(name.upper())
    if row is not None:
        return row.name
    name = name.lower()
    return _USUAL_NAMES.get(name.replace("-", "").replace("_", "")) or near_name(name, DTYPES)


def hint_for_dtype(given: str, names: Mapping[str, str] | None = None, of: str = "data") -> str:
    """Return the hint for `given`, which is not the name of a type.

    `names` maps the names in `DTYPES` to the names in a format, which by default are the same. `of` is the name of the
    tensor. If the tensor holds positions, the hint always suggests `POSITION_TYPE`.
    """
    known = dict(zip(DTYPES, DTYPES, strict=True)) if names is None else names
    if holds_positions(of):
        return f"{replacement_text(given, known[POSITION_TYPE])}, which is the type of {of}."
    listed = ", ".join(known.values())
    near = known.get(near_dtype(given) or "")
    if near is None:
        return f"Use one of the types {listed}."
    return f"{replacement_text(given, near)}; the types are {listed}."
