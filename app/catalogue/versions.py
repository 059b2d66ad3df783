"""The rules for versions: the next number, which versions a new one supersedes, and which ones may be removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.name_errors import name_conflict, not_found, tensor_in_use
from app.catalogue.records import NameRecord, Version
from app.tensors.tensor_name import split_reference

AnyVersion = TypeVar("AnyVersion", bound=Version)


def check_new_version(own: NameRecord[Version]) -> None:
    """Raise name_conflict if the name is an alias: tensors and aliases share one set of names."""
    if own.alias is not None:
        raise name_conflict(own.name, is_alias=True)


def next_number(last: int | None, floor: int) -> int:
    """Return the number of the next version of a name. Numbers are never reused.

    `last` is the highest number that the name has ever had, or None if the name is not remembered. `floor` is the
    highest number of all names that are not remembered.
    """
    return 1 + (floor if last is None else last)


def select_surplus(own: NameRecord[AnyVersion], keep: int) -> Sequence[AnyVersion]:
    """Return the versions to remove so that the `keep` newest ones remain, including the new one.

    Versions with aliases are kept.
    """
    named = {alias.version for alias in own.aliases}
    older = own.versions[: max(0, len(own.versions) + 1 - max(keep, 1))]
    return [one for one in older if one.number not in named]


def select_replaced(
    own: NameRecord[AnyVersion], keep: int, conditions: Conditions, etag_of: Callable[[AnyVersion], str]
) -> Sequence[AnyVersion]:
    """Return the versions to remove when the next one is published; see `select_surplus`.

    The conditions apply to the current version. Raises name_conflict for an alias, and precondition_failed.
    """
    check_new_version(own)
    if conditions != ALWAYS:
        conditions.check(None if own.current is None else etag_of(own.current))
    return select_surplus(own, keep)


def select_removed(
    own: NameRecord[AnyVersion], reference: str, conditions: Conditions, etag_of: Callable[[AnyVersion], str]
) -> Sequence[AnyVersion]:
    """Return the versions to remove for `reference`: one version, or all versions of a name.

    The conditions apply to the version that `reference` refers to. Raises name_conflict for an alias, tensor_not_found,
    precondition_failed, and tensor_in_use if an alias points to one of the versions.
    """
    number = split_reference(reference)[1]
    if number is None and own.alias is not None:
        raise name_conflict(reference, is_alias=True)
    found = own.current if number is None else own.version(number)
    if found is None:
        raise not_found(own, reference)
    if conditions != ALWAYS:
        conditions.check(etag_of(found))
    going = own.versions if number is None else (found,)
    numbers = {one.number for one in going}
    used = [alias for alias in own.aliases if alias.version in numbers]
    if used:
        raise tensor_in_use(reference, used)
    return going
