"""One tensor out of the base64 of a JSON body: the same three questions as `json_values` answers."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from app.errors import GatherError, Place
from app.tensors.dtypes import DType
from app.tensors.tensor import Tensor, coordinates
from app.wire.packed import STRING_BYTES, Charge, PackedItemError, PackedSizeError, check_packed, unpack


class Packed(NamedTuple):
    """The bytes of the tensor `name`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    raw: bytes

    def read(self, charge: Charge | None = None) -> Tensor | None:
        """The tensor, or None where something is wrong with it. `charge` is told what strings will take, in bytes.

        Raises what `charge` raises.
        """
        name, dtype, shape, raw = self
        try:
            check_packed(dtype, shape, raw)
            if charge is not None and dtype.kind == "string":
                charge(prod(shape) * STRING_BYTES + len(raw))
            array = unpack(dtype, raw, charge)
        except (PackedSizeError, PackedItemError):
            return None
        return Tensor(dtype, shape, array, f"/{name}/base64", "whole", f"/{name}/shape", f"/{name}/dtype")

    def explain_nesting(self) -> None:
        """Raises element_count_mismatch where there are too few or too many bytes."""
        try:
            check_packed(self.dtype, self.shape, self.raw)
        except PackedSizeError as error:
            raise GatherError(
                "element_count_mismatch", f"{self.name}: {error}", pointer=f"/{self.name}/base64"
            ) from None

    def explain_value(self) -> None:
        """Raises value_not_representable for the first item that the type cannot hold; the size is right."""
        try:
            unpack(self.dtype, self.raw)
        except PackedItemError as error:
            place = Place(f"/{self.name}/base64", coordinates(error.item, self.shape), error.value)
            raise GatherError("value_not_representable", f"{self.name}: {error}", places=[place]) from None
