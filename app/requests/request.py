"""A request between the bytes that carried it and the call that it makes: a document, arrays, and an origin.

A format cuts the arrays out of what it received. What is left, a small document, is validated by the model of its
family, whichever format it came in; the arrays are read once everything else is right.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple, Protocol

from app.errors import GatherError
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.tensor import Tensor


class ArraySource(Protocol):
    """The items of a tensor where the request has them: a span of JSON, a base64 text or little-endian bytes."""

    def read(self) -> Tensor | None:
        """Read the items, or return None if something is wrong with them, which the `explain` methods tell.

        The memory of the request is charged before it is taken. Raises what charging raises.
        """

    def explain_nesting(self) -> None:
        """Raise element_count_mismatch if there are too many or too few items, or their lists are wrongly nested."""

    def explain_value(self) -> None:
        """Raise value_not_representable at the first item that the type cannot hold, once the nesting is right."""


class GivenArray(NamedTuple):
    """An array of a request. `unsupported` is the error to raise if its type has a name that no type has, or its items
    are not where they belong."""

    source: ArraySource
    unsupported: GatherError | None = None


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
    array: Callable[[str, Any], GivenArray] | None
    origin: Origin
    memory: Memory = UNCOUNTED
    beside: Collection[str] | None = None


class WrongArrays(Exception):
    """Something is wrong with the items of these arrays; `raise_first` finds out what."""

    def __init__(self, sources: Iterable[ArraySource]) -> None:
        super().__init__()
        self.sources = [*sources]

    def raise_first(self) -> None:
        """Raise the error of the first wrong array: the nesting of every array comes before the values of any."""
        for source in self.sources:
            source.explain_nesting()
        for source in self.sources:
            source.explain_value()
