"""The inference protocol's description of a model: its metadata, and its configuration in Triton's form."""

from __future__ import annotations

from typing import Any, Final

from app.formats.oip.infer_document import Model
from app.operators.lookup_plan import INDEX_DTYPES
from app.operators.registry import OPERATORS
from app.store import Resident
from app.tensors.by_key import FOUND, KEYS
from app.tensors.dtypes import BY_OIP, DTYPES, INTEGERS
from app.tensors.gather_call import OUTPUT

PLATFORM: Final = "gathernd"
ANY_DATATYPE: Final = "FP32"
"""The metadata's datatype of `data` and `output` when any is accepted: the protocol has no word for it."""
ANY_SHAPE: Final = (-1,)
TUPLES_SHAPE: Final = (-1, -1)
"""The metadata's shape of indices that are tuples: rows of them. Other ranks are accepted as well, and one list of
numbers is one tuple.
"""
_OF_TUPLES: Final = ("gathernd", "scatternd")


def _tensors(model: Model, resident: Resident | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Inputs and outputs of a model for its metadata."""
    every = {"datatypes": list(BY_OIP)}
    data = {"name": "data", "datatype": ANY_DATATYPE, "shape": ANY_SHAPE, "parameters": every}
    if model.is_lookup:
        int32_64 = {"datatypes": [DTYPES[name].oip for name in INDEX_DTYPES]}
        positions = [
            {"name": f"0.{name}", "datatype": "INT64", "shape": ANY_SHAPE, "parameters": int32_64}
            for name in ("indices", "offsets")
        ]
        floats = {"datatypes": [row.oip for row in BY_OIP.values() if row.kind == "float"]}
        weights = data | {"name": "0.weights", "parameters": floats}
        return [*positions, weights], [data | {"name": name} for name in (OUTPUT, f"0.{OUTPUT}")]
    taken = frozenset().union(*(row.index_dtypes for row in OPERATORS[model.signature.operator].dialects.values()))
    integers = {"datatypes": [DTYPES[name].oip for name in INTEGERS if name in taken]}
    indices_shape = TUPLES_SHAPE if model.signature.operator in _OF_TUPLES else ANY_SHAPE
    indices: dict[str, Any] = {
        "name": "indices", "datatype": "INT64", "shape": indices_shape, "parameters": integers,
    }  # fmt: skip
    output: dict[str, Any] = data | {"name": OUTPUT}
    if resident is not None:
        output = {"name": OUTPUT, "datatype": resident.tensor.dtype.oip, "shape": ANY_SHAPE}
    inputs = [{"data": data, "indices": indices}.get(name) or data | {"name": name} for name in model.inputs]
    if resident is not None and resident.keys is not None:
        keys = {"name": KEYS, "datatype": DTYPES[resident.keys.dtype].oip, "shape": ANY_SHAPE}
        return [*inputs, keys], [output, {"name": FOUND, "datatype": "BOOL", "shape": ANY_SHAPE}]
    return inputs, [output]


def model_metadata(model: Model, resident: Resident | None, versions: list[str]) -> dict[str, Any]:
    """The metadata of a model, which has these versions."""
    inputs, outputs = _tensors(model, resident)
    return {"name": model.name, "versions": versions, "platform": PLATFORM, "inputs": inputs, "outputs": outputs}


def model_config(model: Model, resident: Resident | None) -> dict[str, Any]:
    """The configuration of a model in the form of Triton's model configuration."""
    inputs, outputs = _tensors(model, resident)
    if model.is_lookup:
        return _config(model.name, inputs, outputs, {})
    signature = model.signature
    defaults = {parameter.name: str(parameter.default) for parameter in signature.parameters}
    if signature.kind == "scatter":
        defaults["reduction"] = "none"
    defaults |= {"dialect": signature.default_dialect, "device": "auto"}
    return _config(model.name, inputs, outputs, defaults)


def _config(
    name: str, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], defaults: dict[str, str]
) -> dict[str, Any]:
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 0,
        "input": [_configured(tensor) for tensor in inputs],
        "output": [_configured(tensor) for tensor in outputs],
        "parameters": {name: {"string_value": value} for name, value in defaults.items()},
    }


def _configured(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = tensor["datatype"]
    return {
        "name": tensor["name"],
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": tensor["shape"],
    }
