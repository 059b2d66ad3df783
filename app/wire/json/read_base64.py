"""One tensor out of the base64 of a JSON body: the same three questions as `read_values` answers."""

from __future__ import annotations

from dataclasses import dataclass

from app.errors import GatherError, Place
from app.tensors.dtypes import DType
from app.tensors.tensor import Tensor, coordinates
from app.wire.little_endian_items import Charge, PackedItemError, PackedSizeError, check_packed, unpack


@dataclass(slots=True)
class Packed:
    """The bytes of the tensor `name`. `wrong` is the item that `read` stopped at."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    raw: bytes
    wrong: PackedItemError | None = None

    def read(self, charge: Charge | None = None) -> Tensor | None:
        """The tensor, or None where something is wrong with it. `charge` is told what it will take beside `raw`.

        Raises what `charge` raises.
        """
        name, dtype, shape = self.name, self.dtype, self.shape
        try:
            return unpack(dtype, shape, self.raw, charge, f"/{name}/base64", f"/{name}/shape", f"/{name}/dtype")
        except PackedSizeError:
            return None
        except PackedItemError as error:
            self.wrong = error
            return None

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
        if self.wrong is not None:
            place = Place(f"/{self.name}/base64", coordinates(self.wrong.item, self.shape), self.wrong.value)
            raise GatherError("value_not_representable", f"{self.name}: {self.wrong}", places=[place])
