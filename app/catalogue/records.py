"""The records that the rules for names work on: the versions of a name, and aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Version(Protocol):
    """One version of a name: a file in a store, or segments on the shards of a cluster."""

    @property
    def number(self) -> int:
        """The version's number within its name. Numbers start at 1."""


Version_co = TypeVar("Version_co", bound=Version, covariant=True)


@dataclass(frozen=True, slots=True)
class Alias:
    """A name that points to one version of a tensor.

    `etag` changes with each move. `created` is when the alias was created, and `modified` is when it was last moved,
    both in nanoseconds since 1970.
    """

    alias: str
    name: str
    version: int
    etag: str
    created: int
    modified: int

    @property
    def reference(self) -> str:
        """The version that the alias points to: `NAME@7`."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class NameRecord(Generic[Version_co]):
    """Everything that a name refers to at one moment: either versions or an alias.

    `versions` are the kept versions, oldest first. `aliases` are the aliases that point to one of them, sorted by name.
    `alias` is the alias with this name, if any.
    """

    name: str
    versions: Sequence[Version_co] = ()
    aliases: Sequence[Alias] = ()
    alias: Alias | None = None

    def version(self, number: int) -> Version_co | None:
        """Return the version with this number, or None if it is not kept."""
        return next((one for one in self.versions if one.number == number), None)

    @property
    def current(self) -> Version_co | None:
        """The current version, which is the newest one, or None if there are no versions."""
        return self.versions[-1] if self.versions else None
