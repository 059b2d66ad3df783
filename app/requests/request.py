"""A request between the bytes that carried it and the call that it makes: a document, arrays, and an origin.

A format cuts the arrays out of what it received. What is left, a small document, is validated by the model of its
family, whichever format it came in; the arrays are read once everything else is right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

from app.memory.budget import UNCOUNTED, Memory
from app.tensors.tensor import Tensor

ReadArray = tuple[Callable[..., Tensor], tuple[Any, ...]]
"""A function that reads an array of a request, and its arguments: it is called once all else is known to be right. The
memory of the request is charged before it is taken.

Raises unsupported_dtype if its type has a name that no type has; element_count_mismatch if there are too many or too
few items, or their lists are wrongly nested; value_not_representable at the first item that the type cannot hold; and
what charging raises.
"""


class Origin(NamedTuple):
    """Where a request has what the document has: `fields` is the pointer that its fields stand below, `tensor` that of
    the name of a resident tensor in place of the data. `array` is the pointer of an array beside the document.
    """

    fields: str
    tensor: str
    array: Callable[[str], str] = "/".__add__

    def field(self, name: str | None) -> str:
        """The pointer of a field."""
        return f"{self.fields}/{name}"

    def resident(self, name: str) -> str:
        """The pointer of the name of a resident tensor in place of an input."""
        if name == "data":
            return self.tensor
        return self.field(name) if self.fields else f"/{name}/tensor"


JSON_BODY: Final = Origin("", "/data/tensor")
QUERY: Final = Origin("/query", "/query/tensor")


class JsonText(str):
    """The text of a JSON value, which a query or a parameter has where a JSON body has the value itself."""

    __slots__ = ()


class Request(NamedTuple):
    """`document` has every field. `array` finds the array that a validated description stands for, by the name that it
    has in the document (`indices`, `features/3/indices`), and raises invalid_field if there is none; it is None if the
    format describes the arrays itself. Those of a lookup are then not in the document: `beside` has their names.
    `memory` is charged with what is read.
    """

    document: Any
    array: Callable[[str, Any], ReadArray] | None
    origin: Origin
    memory: Memory = UNCOUNTED
    beside: Collection[str] | None = None
