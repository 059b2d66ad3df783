"""One tensor out of the base64 of a JSON body: its bytes, and the same three questions as `read_values` answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pybase64
from numpy.typing import NDArray

from app.errors import GatherError, Place, invalid_field
from app.json_text.read_values import Values
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES, DType
from app.tensors.frame_format import HEAD
from app.tensors.little_endian_items import PackedItemError, PackedSizeError, check_packed, packed_size_hint, unpack
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor, coordinates


@dataclass(slots=True)
class Packed:
    """The bytes of the tensor `name`. `wrong` is the item that `read` stopped at."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    raw: bytes
    memory: Memory = UNCOUNTED
    wrong: PackedItemError | None = None

    def read(self) -> Tensor | None:
        """The tensor, or None where something is wrong with it. Charges what it takes beside `raw`.

        Raises what charging raises.
        """
        name, dtype, shape = self.name, self.dtype, self.shape
        try:
            return unpack(dtype, shape, self.raw, self.memory, f"/{name}/base64", f"/{name}/shape", f"/{name}/dtype")
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
                "element_count_mismatch",
                f"{self.name}: {error}",
                pointer=f"/{self.name}/base64",
                hint=packed_size_hint(self.dtype, self.shape, len(self.raw)),
            ) from None

    def explain_value(self) -> None:
        """Raises value_not_representable for the first item that the type cannot hold; the size is right."""
        if self.wrong is not None:
            place = Place(f"/{self.name}/base64", coordinates(self.wrong.item, self.shape), self.wrong.value)
            detail = f"{self.name}: {self.wrong}"
            raise GatherError("value_not_representable", detail, places=[place], hint=self.wrong.hint)


def base64_bytes(
    name: str, body: Buffer, view: NDArray[np.uint8], first: int, end: int, escaped: bool, memory: Memory
) -> bytes:
    """The bytes that the string in [first, end) of `body` stands for; `view` is the body as an array.

    `memory` is charged with them before they are made. Raises invalid_field where the string is no base64.
    """
    text = memoryview(body)[first + 1 : end - 1]
    if escaped:
        text = _unescaped(name, view, first, end, memory)
    memory.charge(len(text) // 4 * 3)
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError:
        raise _no_base64(name) from None


def _unescaped(name: str, view: NDArray[np.uint8], first: int, end: int, memory: Memory) -> memoryview:
    """The UTF-8 of the string in [first, end) of `view`. Raises invalid_field for what is none."""
    string = Values(view, name, DTYPES["string"], (), first, end, 0, memory=memory).read()
    if not isinstance(string, PackedStrings):
        raise _no_base64(name)
    return string.frame(0)[HEAD:]


def _no_base64(name: str) -> GatherError:
    hint = "Encode the bytes with + and /, and = at the end, and without spaces or line breaks."
    return invalid_field(f"/{name}/base64", "the text is not base64 (RFC 4648, with padding)", hint)
