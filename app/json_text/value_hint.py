"""Hints for a value that the type of its tensor cannot hold."""

from __future__ import annotations

from math import inf, isfinite
from typing import Final

from app.json_text import lossless_json
from app.near_name import shorten
from app.tensors import float_rounding
from app.tensors.dtypes import DTYPES, INTEGERS, DType

_NON_FINITE: Final = {
    "nan": "NaN", "+nan": "NaN", "-nan": "NaN", "inf": "Infinity", "+inf": "Infinity", "infinity": "Infinity",
    "+infinity": "Infinity", "-inf": "-Infinity", "-infinity": "-Infinity",
}  # fmt: skip
"""JSON's strings for non-finite numbers, keyed by other languages' spellings in lowercase."""
_WIDEST_FLOAT: Final = "float64"
_LARGEST_FLOAT32: Final = 3.4028234663852886e38


def hint(dtype: DType, value: object, pointer: str, of: str, protocol: bool = False) -> str:
    """Return how to fix the JSON value at `pointer` in the tensor `of`. The value None means null or an object.

    Another dtype is suggested only for `data`, because `data` or the operator determines the types of other tensors.
    For an input of the inference `protocol`, the suggested type is a datatype of the protocol.
    """
    sentence, other, why = _hint(dtype, value, pointer)
    if not other or of != "data":
        return f"{sentence}."
    named = f"datatype '{DTYPES[other].oip}'" if protocol else f"dtype '{other}'"
    return f"{sentence}, or use {named}{why}."


def _hint(dtype: DType, value: object, pointer: str) -> tuple[str, str, str]:
    """Return what to write (without the period), another dtype that can hold the value, and the reason."""
    at = f"at {shorten(pointer)}"
    if dtype.kind == "string":
        return _hint_for_string(value, at), "", ""
    if dtype.kind == "bool":
        return _hint_for_bool(value, at), "", ""
    if isinstance(value, str):
        known = _NON_FINITE.get(value.strip().lower())
        whole = "whole " if dtype.kind in ("int", "uint") else ""
        if known is not None and not whole and (known == "NaN" or _has_infinity(dtype)):
            return f"Write '{known}' in place of '{shorten(value)}' {at}", "", ""
        if known is not None:
            return f"Write a {whole}number {at}, such as 0", _WIDEST_FLOAT, f", which has {known}"
        if _is_number(value):
            return f"Write {value.strip()} without quotes {at}", "", ""
        return f"Write a number {at}, such as 0", "", ""
    if isinstance(value, bool):
        return f"Write {int(value)} in place of {str(value).lower()} {at}", "", ""
    if dtype.kind in ("int", "uint"):
        return _hint_for_integer(dtype, value, at)
    if value is None:
        return f"Write a number {at}, or 'NaN' if there is no number", "", ""
    if _float(value) < 0 and dtype.kind == "float" and not float_rounding.is_signed(dtype):
        return f"Write a number of 0 or more {at}", "float32", ", which has negative numbers"
    if dtype.name not in ("float64", "complex128") and _fits_float64(value):
        wider = "complex128" if dtype.kind == "complex" else "float32" if _fits_float32(value) else _WIDEST_FLOAT
        return f"Write a smaller number {at}, such as 0", wider, ", which holds it"
    other = "or 'Infinity'" if _has_infinity(dtype) else "such as 0"
    return f"Write a smaller number {at}, {other}", "", ""


def _has_infinity(dtype: DType) -> bool:
    return dtype.kind != "float" or float_rounding.has_infinity(dtype)


def _hint_for_string(value: object, at: str) -> str:
    if isinstance(value, str):
        return f"Leave out the lone surrogate in the string {at}"
    if value is None:
        return f"Write a string {at}, such as an empty one, in place of null or an object"
    shown = str(value).lower() if isinstance(value, bool) else lossless_json.shown(value)
    return f"Write {shown} in double quotes {at}"


def _hint_for_bool(value: object, at: str) -> str:
    shown = lossless_json.shown(value)
    if str(shown).lower() in ("1", "true", "0", "false"):
        return f"Write {'true' if str(shown).lower() in ('1', 'true') else 'false'} in place of {shown!r} {at}"
    return f"Write true or false {at}"


def _hint_for_integer(dtype: DType, value: object, at: str) -> tuple[str, str, str]:
    if value is None:
        return f"Write a whole number {at}, such as 0", "", ""
    whole = lossless_json.integer(value)
    if whole is None:
        return f"Write a whole number {at}, such as 0", _WIDEST_FLOAT, ""
    holders = [DTYPES[name] for name in INTEGERS if DTYPES[name].low <= whole <= DTYPES[name].high]
    # Among the types that can hold the value, prefer the same kind, then the smallest.
    holders.sort(key=lambda row: (row.kind != dtype.kind, row.item_size))
    return f"Write a number from {dtype.low} to {dtype.high} {at}", holders[0].name if holders else "", ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return len(text) <= 40


def _fits_float64(value: object) -> bool:
    return isfinite(_float(value))


def _fits_float32(value: object) -> bool:
    return abs(_float(value)) <= _LARGEST_FLOAT32


def _float(value: object) -> float:
    """Convert a JSON number to a float, which is infinite if the number is too large."""
    try:
        return float(value.text if isinstance(value, lossless_json.Number) else value)  # type: ignore[arg-type]
    except OverflowError:
        return inf
