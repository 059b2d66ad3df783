"""The rules for aliases. An alias points to one version of a tensor; any number of aliases can be moved in one step.

Tensors and aliases share one set of names. A version that an alias points to is never removed or superseded; see
`versions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.name_errors import name_conflict, no_alias, unknown_reference
from app.catalogue.records import Alias, NameRecord, Version
from app.errors import GatherError
from app.near_name import shorten
from app.tensors.tensor_name import check_new_name, split_reference


@dataclass(frozen=True, slots=True)
class AliasMove:
    """A request to point an alias to the version `target` (`NAME@7`) if the alias meets the conditions.

    `pointer` and `target_pointer` locate the alias and the target in the request.
    """

    alias: str
    target: str
    conditions: Conditions = ALWAYS
    pointer: str = "/name"
    target_pointer: str = "/tensor"


def new_etag() -> str:
    """Return a new, unique ETag for an alias."""
    return f'"{uuid4().hex}"'


def find_alias(own: NameRecord[Version], names: Iterable[str]) -> Alias:
    """Return the alias with this name. Raises tensor_not_found, with a hint that may suggest one of `names`."""
    if own.alias is None:
        raise no_alias(own.name, is_tensor=bool(own.versions), names=names)
    return own.alias


def move_aliases(
    moves: Sequence[AliasMove], record_of: Callable[[str], NameRecord[Version]], now: int, etags: Sequence[str]
) -> list[tuple[Alias, bool]]:
    """Create or move all of these aliases, or none of them. Returns each alias and whether it is new.

    An alias may occur in only one move. `record_of` returns the record of a name, and `etags` holds a new ETag for each
    move. An alias that already points to its version stays unchanged. Raises invalid_field, name_conflict,
    precondition_failed, and tensor_not_found if a target does not exist.
    """
    for move in moves:
        check_new_name(move.alias, move.pointer)
    targets = [_parse_target(move, record_of) for move in moves]
    made = []
    for move, (name, version), etag in zip(moves, targets, etags, strict=True):
        own = record_of(move.alias)
        if own.versions:
            raise name_conflict(move.alias, is_alias=False, pointer=move.pointer)
        old = own.alias
        move.conditions.check(None if old is None else old.etag, "alias")
        if old is not None and (old.name, old.version) == (name, version):
            made.append((old, False))
        else:
            created = now if old is None else old.created
            made.append((Alias(move.alias, name, version, etag, created, now), old is None))
    return made


def _parse_target(move: AliasMove, record_of: Callable[[str], NameRecord[Version]]) -> tuple[str, int]:
    """Parse the target of an alias into a name and a version number. Raises tensor_not_found and invalid_field."""
    reference, pointer = move.target, move.target_pointer
    name, number = split_reference(reference)
    own = record_of(name)
    if number is not None:
        if own.version(number) is None:
            raise unknown_reference(own, reference, pointer)
        return name, number
    if own.alias is not None:
        detail = "an alias points to a version of a tensor, not to another alias"
        hint = f"Write the version that GET /aliases/{name} shows."
    else:
        detail = f"an alias points to a version of a tensor, but {shorten(reference)!r} has no number"
        hint = "Name a tensor that GET /tensors lists, and after @ a version that it has."
        meant = record_of(reference.partition("@")[0])
        if meant.current is not None:
            hint = f"Write '{meant.name}@{meant.current.number}' at {pointer}, which is its current version."
    raise GatherError("invalid_field", detail, pointer=pointer, hint=hint)


def alias_to_remove(own: NameRecord[Version], conditions: Conditions) -> Alias:
    """Return the alias to remove. Raises tensor_not_found, name_conflict and precondition_failed."""
    if own.alias is None:
        if own.versions:
            raise name_conflict(own.name, is_alias=False)
        raise no_alias(own.name, is_tensor=False)
    conditions.check(own.alias.etag, "alias")
    return own.alias
