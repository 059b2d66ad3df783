"""The requests of the golden corpus: what callers ask and get wrong, over the routes and formats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.golden.source import Items
from tests.golden.written import WRITTEN, Written
from tests.golden.written_keys import WRITTEN_KEYS
from tests.golden.written_routes import WRITTEN_ROUTES
from tests.http.forms import TYPES, tensor

_ITEMS = Items(0)
TABLES = {
    f"g_{dtype}": tensor(dtype, [6, 2], _ITEMS.of(dtype, 12)) for dtype in TYPES
} | {"g_row": tensor("float32", [5], _ITEMS.of("float32", 5)), "g_empty": tensor("float32", [0, 2], []),
     "g_one": tensor("int8", [], [7])}  # fmt: skip
"""The resident tensors that the requests name."""


@dataclass(frozen=True)
class Asked:
    """A request, by the name of its group and its number there."""

    name: str
    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def digest(self) -> str:
        """Names the bytes of the request."""
        whole = repr((self.method, self.target, sorted(self.headers.items()), self.body))
        return hashlib.sha256(whole.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        fields = "".join(f"\n{name}: {value}" for name, value in self.headers.items())
        return f"{self.method} {self.target}{fields}\n\n{self.body[:1500]!r}"


GROUPS: Mapping[str, tuple[Written, ...]] = {
    name: tuple(wanted) for name, wanted in (WRITTEN | WRITTEN_KEYS | WRITTEN_ROUTES).items()
}


def requests() -> Iterator[Asked]:
    """The whole corpus."""
    return (each for group in GROUPS for each in of_group(group))


def of_group(group: str) -> Iterator[Asked]:
    """The requests of a group."""
    return (Asked(f"{group}/{number}", *written) for number, written in enumerate(GROUPS[group]))
