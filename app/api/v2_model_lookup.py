"""The models of the inference protocol: the operators, and every resident tensor and alias under its own name.

The model of a tensor has the tensor's retained versions, the model of an alias the version that it points to, and the
model of an operator only version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.bounded_cache import BoundedCache
from app.errors import GatherError
from app.formats.oip.infer_answer import VERSION, check_writable
from app.formats.oip.infer_document import LOOKUP_MODEL, Model
from app.near_name import instead_of, near_name
from app.operators.registry import OPERATORS
from app.services.service import Service
from app.store import Resident
from app.telemetry.model_statistics import Statistics
from app.tensors.dtypes import DTYPES
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
"""Signature of the model of a resident tensor for requests with keys."""


class Models:
    """Finds models, and counts their requests in `statistics`."""

    def __init__(self, service: Service, statistics: Statistics) -> None:
        self.service = service
        self.statistics = statistics
        self._known: BoundedCache[str, Model] = BoundedCache(_REMEMBERED)  # by reference

    def find(self, name: str, version: str | None = None) -> tuple[Model, Resident | None]:
        """Return the model, and its resident tensor if it has one. Without `version`, the current version.

        Raises model_not_found, tensor_damaged, and unsupported_dtype if the protocol lacks the tensor's type.
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
        """Return `NAME@7` for a version of the model of a tensor or an alias; None if it has no such version."""
        resolved = self.service.store.resolve(name)
        if resolved is None:
            return None
        own, _ = split_reference(resolved)
        # A tensor's model has all its versions. The model of an alias, or of one version, has only that one.
        reference = f"{own}@{version}"
        if own != name and reference != resolved:
            return None
        return None if split_reference(reference)[1] is None else reference

    def check_older(self, name: str, version: str) -> None:
        """Check that an older version of a tensor's model is callable, in the catalogue only, without reading its file.

        Raises model_not_found and unsupported_dtype.
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
        hint = None if near is None else f"{instead_of(name, near)}."
        return GatherError("model_not_found", f"no model is named {name!r}", hint=hint)

    def find_quickly(self, name: str, version: str | None = None) -> Model:
        """Like `find`, but skips the store for a known tensor. If it was removed, the gather fails later."""
        return (self._known.get(name) if version is None else None) or self.find(name, version)[0]

    def forget(self, name: str) -> None:
        """Drop the cached model of a tensor that was removed."""
        self._known.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all models."""
        store = self.service.store
        return [*_MODELS, *(name for name in (*store.names(), *store.alias_names()) if name not in _MODELS)]

    def counted(self, names: list[str], newest: int | None = None) -> list[str]:
        """Return the labels in the statistics of these models' versions, or of the `newest` versions of each."""
        first = None if newest is None else -newest
        return [counted_as(name, version) for name in names for version in self.versions(name)[first:]]

    def counted_now(self, model: Model) -> str:
        """Return the label in the statistics of a model's current version."""
        resolved = self.service.store.resolve(model.reference) if model.resident else None
        return counted_as(model.name, VERSION if resolved is None else str(split_reference(resolved)[1]))


def _resident_model(name: str, reference: str) -> Model:
    keyed = Model(name, _KEYED, resident=True, reference=reference)
    return Model(name, _RESIDENT, resident=True, reference=reference, keyed=keyed)


def counted_as(name: str, version: int | str) -> str:
    """Return the label in the statistics of a model's version."""
    return f"{name}@{version}"
