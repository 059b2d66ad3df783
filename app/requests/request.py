"""A parsed request, the stage between its bytes and its call: a document, arrays, and an origin.

A format cuts the arrays out of the bytes. The rest is a small document, which the model of the request's family
validates. The model is the same for all formats. The arrays are read once everything else is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from app.memory.budget import UNCOUNTED, Memory
from app.tensors.tensor import Tensor

ReadArray = tuple[Callable[..., Tensor], tuple[Any, ...]]
"""A function that reads an array of a request, and its arguments. It is called once everything else is valid, and
charges the request's memory before it allocates.

Raises unsupported_dtype if the type name is unknown, element_count_mismatch if the number of items or the nesting is
wrong, value_not_representable at the first item that the type cannot hold, and any error of charging.
"""


class Origin(NamedTuple):
    """The positions of a document's parts in the request, for the pointers in errors.

    `fields` is the pointer of the object with the fields. `tensor` is the pointer of the name of a resident tensor that
    replaces the data. `array` returns the pointer of an array by its name.
    """

    fields: str
    tensor: str
    array: Callable[[str], str] = "/".__add__

    def field(self, name: str | None) -> str:
        """Return the pointer of a field."""
        return f"{self.fields}/{name}"

    def resident(self, name: str) -> str:
        """Return the pointer of the name of a resident tensor that replaces the input `name`."""
        if name == "data":
            return self.tensor
        return self.field(name) if self.fields else f"/{name}/tensor"


JSON_BODY: Final = Origin("", "/data/tensor")
QUERY: Final = Origin("/query", "/query/tensor")


class JsonText(str):
    """A value given as JSON text, in a query or a parameter; a JSON body contains the value itself."""

    __slots__ = ()


class Request(NamedTuple):
    """A parsed request. `document` holds every field.

    `array` takes the name of an array in the document (`indices`, `features/3/indices`) and its validated description,
    and returns the array's reader; it raises invalid_field if there is no such array. `array` is None if the format
    describes the arrays itself. In that case, the document of a lookup does not contain them, and `beside` holds their
    names. `memory` is charged for what is read.
    """

    document: Any
    array: Callable[[str, Any], ReadArray] | None
    origin: Origin
    memory: Memory = UNCOUNTED
    beside: Collection[str] | None = None
