"""Errors about names of tensors and aliases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from app.catalogue.records import Alias, NameRecord, Version
from app.errors import GatherError
from app.near_name import near_name, replacement_text
from app.tensors.tensor_name import RESERVED, reserved_name, split_reference

_LISTED_VERSIONS: Final = 3


def not_found(own: NameRecord[Version], reference: str, names: Iterable[str] = ()) -> GatherError:
    """Return tensor_not_found for an unknown reference in the path, or invalid_field for a reserved name."""
    if reference in RESERVED:
        return reserved_name(reference)
    return unknown_reference(own, reference, "/name", names)


def unknown_reference(own: NameRecord[Version], reference: str, pointer: str, names: Iterable[str] = ()) -> GatherError:
    """Return tensor_not_found for a reference at `pointer` to an unknown tensor, version or alias.

    `own` is the record of the name in the reference. `names` are tensors and aliases that may be suggested to the
    caller.
    """
    name, version = split_reference(reference)
    if version is not None and own.alias is not None:
        return GatherError(
            "tensor_not_found",
            f"{name!r} is an alias, which has no versions of its own",
            pointer=pointer,
            hint=(
                f"Write {name!r} at {pointer} for the version that it points to, or the name of the tensor and a "
                "number."
            ),
        )
    kept = [one.number for one in own.versions] if version is not None else []
    if kept:
        listed = ", ".join(map(str, kept[-_LISTED_VERSIONS:]))
        if len(kept) > _LISTED_VERSIONS:
            listed = f"{kept[0]}, ..., {listed}"
        return GatherError(
            "tensor_not_found",
            f"{name!r} has no version {version}; the versions kept are {listed}",
            pointer=pointer,
            hint=f"Use '{name}@{kept[-1]}' at {pointer}, or {name!r} for the current version.",
        )
    near = near_name(name, names)
    hint = None if near is None else f"{replacement_text(name, near)}."
    return GatherError("tensor_not_found", f"no tensor is named {name!r}", pointer=pointer, hint=hint)


def name_conflict(name: str, *, is_alias: bool, pointer: str = "/name") -> GatherError:
    """Return name_conflict for an alias that was used as a tensor, or the reverse."""
    if is_alias:
        hint = f"Use another name for the tensor, or move or remove the alias at /aliases/{name}."
    else:
        hint = f"Use another name for the alias, or remove the tensor at /tensors/{name} first."
    return GatherError(
        "name_conflict",
        f"{name!r} is {'an alias' if is_alias else 'a tensor'}, and tensors and aliases share one set of names",
        pointer=pointer,
        hint=hint,
    )


def tensor_in_use(reference: str, aliases: Sequence[Alias]) -> GatherError:
    """Return tensor_in_use for a tensor or version that these aliases point to."""
    first = aliases[0]
    others = "" if len(aliases) == 1 else f" and {len(aliases) - 1} more"
    return GatherError(
        "tensor_in_use",
        f"{reference!r} cannot be removed: the alias {first.alias!r}{others} points to {first.reference!r}",
        pointer="/name",
        hint=f"Move the alias with PUT /aliases/{first.alias} to another version, or remove it with DELETE, and "
        "repeat the request.",
    )


def no_alias(alias: str, *, is_tensor: bool, names: Iterable[str] = ()) -> GatherError:
    """Return tensor_not_found for an unknown alias in the path. `names` may be suggested to the caller."""
    if is_tensor:
        return GatherError(
            "tensor_not_found",
            f"{alias!r} is a tensor, not an alias",
            pointer="/name",
            hint=f"Request the tensor at /tensors/{alias}.",
        )
    near = near_name(alias, names)
    hint = "Use a name that GET /aliases lists, or create the alias with PUT first."
    if near is not None:
        hint = f"{replacement_text(alias, near)}."
    return GatherError("tensor_not_found", f"no alias is named {alias!r}", pointer="/name", hint=hint)
