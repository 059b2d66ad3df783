"""The models of the inference protocol: the operators, and every resident tensor and alias under its own name.

A tensor's model has the retained versions of the tensor, an alias's model has the version that the alias points to, and
an operator's model has only version 1. A model is described by its metadata and by its configuration in Triton's
format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.bounded_cache import BoundedCache
from app.errors import GatherError
from app.formats.oip.infer_answer import VERSION, check_writable
from app.formats.oip.infer_document import LOOKUP_MODEL, Model
from app.near_name import near_name, replacement_text
from app.operators.lookup_plan import INDEX_DTYPES
from app.operators.registry import OPERATORS
from app.services.service import Service
from app.store import Resident
from app.telemetry.model_statistics import Statistics
from app.tensors.by_key import FOUND, KEYS
from app.tensors.dtypes import BY_OIP, DTYPES, INTEGERS
from app.tensors.gather_call import OUTPUT
from app.tensors.lookup_call import LOOKUP
from app.tensors.tensor_name import split_reference

_REMEMBERED: Final = 1 << 12
_LISTED: Final = 3
"""Number of versions that an error lists, newest first."""
_MODELS: Final[Mapping[str, Model]] = {name: Model(name, row.signature) for name, row in OPERATORS.items()} | {
    LOOKUP: LOOKUP_MODEL
}
_RESIDENT: Final = OPERATORS["gathernd"].signature
"""Signature of the model of a resident tensor."""
_KEYED: Final = OPERATORS["gather"].signature
"""Signature of a resident tensor's model for requests with keys."""


class Models:
    """Finds models, and counts their requests in `statistics`."""

    def __init__(self, service: Service, statistics: Statistics) -> None:
        self.service = service
        self.statistics = statistics
        self._known: BoundedCache[str, Model] = BoundedCache(_REMEMBERED)  # by reference

    def find(self, name: str, version: str | None = None) -> tuple[Model, Resident | None]:
        """Return the model, and its resident tensor if it has one. If `version` is None, uses the current version.

        Raises model_not_found, tensor_damaged, and unsupported_dtype if the protocol does not support the tensor's
        type.
        """
        model = _MODELS.get(name)
        if model is not None:
            if version not in (None, VERSION):
                raise self.not_found(name, version)
            self._known[name] = model
            return model, None
        reference = name if version is None else self._reference(name, version)
        resident = None if reference is None else self.service.store.get(reference)
        if reference is None or resident is None:
            raise self.not_found(name, version)
        check_writable(resident.tensor.dtype)
        if version is not None:
            return _resident_model(name, reference), resident
        model = self._known.get(name)
        if model is None:
            model = self._known[name] = _resident_model(name, name)
        return model, resident

    def _reference(self, name: str, version: str) -> str | None:
        """Return a reference such as `NAME@7` for a version of a tensor's or alias's model, or None if there is no such
        version.
        """
        resolved = self.service.store.resolve(name)
        if resolved is None:
            return None
        own, _ = split_reference(resolved)
        # A tensor's model has all versions of the tensor. The model of an alias, or of one version, has only that
        # version.
        reference = f"{own}@{version}"
        if own != name and reference != resolved:
            return None
        return None if split_reference(reference)[1] is None else reference

    def check_older(self, name: str, version: str) -> None:
        """Check that an older version of a tensor's model is callable.

        Reads only the catalogue, not the version's file. Raises model_not_found and unsupported_dtype.
        """
        dtype = self.service.store.dtype_of(f"{name}@{version}")
        if dtype is None:
            raise self.not_found(name, version)
        check_writable(DTYPES[dtype])

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, oldest first; empty if there is no such model."""
        if name in _MODELS:
            return [VERSION]
        store = self.service.store
        own, number = split_reference(name)
        if number is not None:
            return [] if store.resolve(name) is None else [str(number)]
        return [str(number) for number in store.version_numbers(own)]

    def not_found(self, name: str, version: str | None = None) -> GatherError:
        """Return the error for an unknown model name, or an unknown version of a model."""
        versions = [] if version is None else self.versions(name)
        if versions:
            listed = ", ".join(versions[-_LISTED:])
            return GatherError(
                "model_not_found",
                f"the model {name!r} has no version {version!r}; it has {'..., ' * (len(versions) > _LISTED)}{listed}",
                hint=f"Use the version '{versions[-1]}', or leave out the version.",
            )
        near = near_name(name, self.names())
        hint = None if near is None else f"{replacement_text(name, near)}."
        return GatherError("model_not_found", f"no model is named {name!r}", hint=hint)

    def find_quickly(self, name: str, version: str | None = None) -> Model:
        """Like `find`, but skip the store for a known tensor. If the tensor was removed, the gather fails later."""
        return (self._known.get(name) if version is None else None) or self.find(name, version)[0]

    def forget(self, name: str) -> None:
        """Drop the cached model of a tensor that was removed."""
        self._known.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all models."""
        store = self.service.store
        return [*_MODELS, *(name for name in (*store.names(), *store.alias_names()) if name not in _MODELS)]

    def statistics_labels(self, names: list[str], newest: int | None = None) -> list[str]:
        """Return the statistics labels of all versions of these models, or of each model's last `newest` versions."""
        first = None if newest is None else -newest
        return [statistics_label(name, version) for name in names for version in self.versions(name)[first:]]

    def current_statistics_label(self, model: Model) -> str:
        """Return the statistics label of a model's current version."""
        resolved = self.service.store.resolve(model.reference) if model.resident else None
        return statistics_label(model.name, VERSION if resolved is None else str(split_reference(resolved)[1]))


def _resident_model(name: str, reference: str) -> Model:
    keyed = Model(name, _KEYED, resident=True, reference=reference)
    return Model(name, _RESIDENT, resident=True, reference=reference, keyed=keyed)


def statistics_label(name: str, version: int | str) -> str:
    """Return the statistics label of a model's version."""
    return f"{name}@{version}"


PLATFORM: Final = "gathernd"
ANY_DATATYPE: Final = "FP32"
"""The datatype of `data` and `output` in the metadata when any datatype is accepted: the protocol has no name for
that.
"""
ANY_SHAPE: Final = (-1,)
TUPLES_SHAPE: Final = (-1, -1)
"""The shape in the metadata for indices that are tuples: one tuple per row.

Other ranks are also accepted, and a single list of numbers is one tuple.
"""
_OF_TUPLES: Final = ("gathernd", "scatternd")


def _model_tensors(model: Model, resident: Resident | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the inputs and outputs of a model for its metadata."""
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
    """Return the metadata of a model with these versions."""
    inputs, outputs = _model_tensors(model, resident)
    return {"name": model.name, "versions": versions, "platform": PLATFORM, "inputs": inputs, "outputs": outputs}


def model_config(model: Model, resident: Resident | None) -> dict[str, Any]:
    """Return the configuration of a model in Triton's format."""
    inputs, outputs = _model_tensors(model, resident)
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
        "input": [_config_tensor(tensor) for tensor in inputs],
        "output": [_config_tensor(tensor) for tensor in outputs],
        "parameters": {name: {"string_value": value} for name, value in defaults.items()},
    }


def _config_tensor(tensor: dict[str, Any]) -> dict[str, Any]:
    datatype = tensor["datatype"]
    return {
        "name": tensor["name"],
        "data_type": "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}",
        "dims": tensor["shape"],
    }
