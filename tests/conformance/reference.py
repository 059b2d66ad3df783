"""What a valid case is answered, by loops over single elements: plain NumPy, and nothing of `app`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.conformance.cases import Case, is_named
from tests.parity import backward_cases, gather_cases, lookup_cases, scatter_cases
from tests.parity.block_quantized import dequantized
from tests.parity.items import NUMPY, Array, name_of
from tests.parity.lookup_cases import Feature, Lookup
from tests.parity.messages import Request
from tests.rounding import rounded


def answered(case: Case) -> tuple[Mapping[str, Array], int | None]:
    """The outputs of a valid case, and how many components of its indices are replaced, None if none may be."""
    asked = case.parameters.get("output_dtype")
    if asked is None:
        return _answered(case, case.tables)
    left = {name: value for name, value in case.parameters.items() if name != "output_dtype"}
    tables = case.tables
    if case.features is not None:  # what is pooled is rounded once, from a sum in float32
        left["concat"] = False
        case = replace(
            case, arrays={name: replace(told, array=_wide(told.array)) for name, told in case.arrays.items()}
        )
        tables = {name: _wide(table) for name, table in tables.items()}
    outputs, replaced = _answered(replace(case, parameters=left), tables)
    found = {name: _rounded(output, asked) for name, output in outputs.items()}
    if case.features is not None and case.parameters.get("concat", True):
        columns = [each[:, np.newaxis] if each.ndim == 1 else each for each in found.values()]
        found = {"output": np.concatenate(columns, axis=1)}
    return found, replaced


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if name_of(array) in ("float16", "bfloat16") else array


def _rounded(output: Array, dtype: str) -> Array:
    numbers = [rounded(float(number), dtype) for number in output.reshape(-1)]
    return np.array(numbers, np.float64).astype(NUMPY[dtype]).reshape(output.shape)


def _answered(case: Case, tables: Mapping[str, Array]) -> tuple[Mapping[str, Array], int | None]:
    arrays = {name: told.array for name, told in case.arrays.items()}
    parameters: dict[str, Any] = dict(case.parameters)
    if case.features is not None:
        features = [
            Feature(
                one["tensor"], one.get("pooling", "none"), include_last_offset=one.get("include_last_offset", False)
            )
            for one in case.features
        ]
        lookup = Lookup(case.path, arrays, parameters, features=features)
        outputs, replaced = lookup_cases.looped(lookup, tables)
        return outputs, replaced if parameters.get("out_of_bounds", "error") != "error" else None
    request = Request(case.path, arrays, parameters)
    if case.path.endswith("/backward"):
        held = {name: (name_of(table), list(table.shape)) for name, table in case.tables.items()}
        return backward_cases.looped(request, held), None
    if case.path == "/gather_block_quantized":
        arrays |= {name: case.tables[value["tensor"]] for name, value in parameters.items() if is_named(value)}
        bits, block_size = parameters.get("bits", 4), parameters.get("block_size", 128)
        table = dequantized(arrays["data"], arrays["scales"], arrays.get("zero_points"), bits, block_size)
        modes = {name: value for name, value in parameters.items() if name in ("out_of_bounds", "fill_value")}
        request = Request("/gather", {"data": table, "indices": arrays["indices"]}, modes)
    if case.path.startswith("/scatter"):
        return {"output": scatter_cases.looped(request)}, None
    output, count = gather_cases.looped(request)
    return {"output": output}, count if gather_cases.mode_of(request) != "error" else None


def changed(case: Case) -> Array:
    """What a resident tensor holds after the scatter."""
    arrays = {name: told.array for name, told in case.arrays.items()}
    return scatter_cases.looped(Request("/scatternd", arrays, dict(case.parameters)))


def check_said(case: Case, said: Mapping[str, Any]) -> None:
    """The answer tells its dialect and device, and which content of resident tensors was read."""
    if case.features is not None:
        assert [one["tensor"] for one in said["features"]] == [one["tensor"] for one in case.features]
        assert all(one["data_etag"] for one in said["features"])
        return
    usual = "onnx-18" if case.path.startswith("/scatter") else "onnx-13"
    usual = "onnxruntime-1" if case.path == "/gather_block_quantized" else usual
    assert (said["dialect"], said["device"]) == (case.parameters.get("dialect", usual), "cpu")
    assert bool(said.get("data_etag")) == (case.resident is not None)
