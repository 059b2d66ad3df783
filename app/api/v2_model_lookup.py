"""The models of the inference protocol: the operators, and every resident tensor under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.bounded_cache import BoundedCache
from app.errors import GatherError
from app.near_name import instead_of, near_name
from app.operators.registry import OPERATORS
from app.service import Service
from app.store import Resident
from app.telemetry.model_statistics import Statistics
from app.tensors.lookup_call import LOOKUP
from app.wire import v2_answer
from app.wire.v2_answer import VERSION
from app.wire.v2_lookup import LookupModel
from app.wire.v2_request_json import Model

_REMEMBERED: Final = 1 << 12
_MODELS: Final[Mapping[str, Model]] = {name: Model(name, row.signature) for name, row in OPERATORS.items()}
_LOOKUP: Final = LookupModel()
_RESIDENT: Final = OPERATORS["gathernd"].signature
"""What a resident tensor is as a model."""


class Models:
    """Finds models, whose requests are counted in `statistics`."""

    def __init__(self, service: Service, statistics: Statistics) -> None:
        self.service = service
        self.statistics = statistics
        self._known: BoundedCache[str, Model | LookupModel] = BoundedCache(_REMEMBERED)

    def find(self, name: str, version: str = VERSION) -> tuple[Model | LookupModel, Resident | None]:
        """The model, and the resident tensor that it is.

        Raises model_not_found, tensor_damaged, and unsupported_dtype for a tensor that the protocol cannot carry.
        """
        if version != VERSION:
            raise GatherError(
                "model_not_found",
                f"no model has a version {version!r}; {VERSION!r} is the only one",
                hint=f"Use the version '{VERSION}', or leave out the version.",
            )
        model: Model | LookupModel | None = _LOOKUP if name == LOOKUP else _MODELS.get(name)
        if model is not None:
            self._known[name] = model
            return model, None
        resident = self.service.store.get(name)
        if resident is None:
            raise self.not_found(name)
        v2_answer.check_writable(resident.tensor.dtype)
        model = self._known.get(name)
        if model is None:
            model = self._known[name] = Model(name, _RESIDENT, resident=True)
        return model, resident

    def not_found(self, name: str) -> GatherError:
        """The error for a name that no model has."""
        near = near_name(name, self.names())
        hint = None if near is None else f"{instead_of(name, near)}."
        return GatherError("model_not_found", f"no model is named {name!r}", hint=hint)

    def find_quickly(self, name: str, version: str = VERSION) -> Model | LookupModel:
        """As `find`, without asking the store for a tensor that was there before; if it has gone, the gather fails."""
        return (self._known.get(name) if version == VERSION else None) or self.find(name, version)[0]

    def forget(self, name: str) -> None:
        """The tensor of this name is gone."""
        self._known.pop(name, None)

    def names(self) -> list[str]:
        """The names of all models."""
        own = (*_MODELS, LOOKUP)
        return [*own, *(name for name in self.service.store.names() if name not in own)]
