"""The errors that the store answers with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from app.errors import GatherError
from app.near_name import instead_of, near_name
from app.store.catalogue.catalogue_rows import Alias
from app.store.store_interface import Store
from app.tensors.tensor_name import RESERVED, reserved_name, split_reference

_LISTED_VERSIONS: Final = 3


def damaged(name: str, why: str) -> GatherError:
    """tensor_damaged for tensor `name`."""
    return GatherError("tensor_damaged", f"the content of {name!r} is damaged: {why}")


def unreadable(name: str, error: OSError) -> GatherError:
    """tensor_damaged for tensor `name`, whose file the system cannot read."""
    return damaged(name, f"its file cannot be read: {error.strerror or error}")


def not_found(reference: str, store: Store, *, tell_names: bool = False) -> GatherError:
    """tensor_not_found for a reference in the path that names nothing, invalid_field for a reserved name."""
    if reference in RESERVED:
        return reserved_name(reference)
    return unknown_reference(reference, "/name", store, tell_names=tell_names)


def unknown_reference(reference: str, pointer: str, store: Store, *, tell_names: bool = True) -> GatherError:
    """tensor_not_found for a reference at `pointer` that names no tensor, version or alias of `store`.

    `tell_names` says that the caller may see the names that there are.
    """
    name, version = split_reference(reference)
    aliases = store.alias_names()
    if version is not None and name in aliases:
        return GatherError(
            "tensor_not_found",
            f"{name!r} is an alias, which has no versions of its own",
            pointer=pointer,
            hint=f"Write {name!r} at {pointer} for the version that it names, or the name of the tensor and a number.",
        )
    kept = store.version_numbers(name) if version is not None else []
    if kept:
        return no_version(reference, pointer, kept)
    return no_tensor(name, pointer, [*store.names(), *aliases] if tell_names else ())


def name_conflict(name: str, *, is_alias: bool) -> GatherError:
    """name_conflict for a name that is an alias where a tensor is meant, or the other way round."""
    if is_alias:
        hint = f"Use another name for the tensor, or move or remove the alias at /aliases/{name}."
    else:
        hint = f"Use another name for the alias, or remove the tensor at /tensors/{name} first."
    return GatherError(
        "name_conflict",
        f"{name!r} is {'an alias' if is_alias else 'a tensor'}, and tensors and aliases share their names",
        pointer="/name",
        hint=hint,
    )


def tensor_in_use(reference: str, aliases: Sequence[Alias]) -> GatherError:
    """tensor_in_use for a tensor or version that these aliases name."""
    first = aliases[0]
    others = "" if len(aliases) == 1 else f" and {len(aliases) - 1} more"
    return GatherError(
        "tensor_in_use",
        f"{reference!r} is not removed, since the alias {first.alias!r}{others} names {first.reference!r}",
        pointer="/name",
        hint=f"Move the alias with PUT /aliases/{first.alias} to another version, or remove it with DELETE, and "
        "repeat the request.",
    )


def no_alias(alias: str, *, is_tensor: bool, names: Iterable[str] = ()) -> GatherError:
    """tensor_not_found for an alias in the path that there is not; `names` are those that the caller may see."""
    if is_tensor:
        return GatherError(
            "tensor_not_found",
            f"{alias!r} is a tensor and no alias",
            pointer="/name",
            hint=f"Ask for the tensor at /tensors/{alias}.",
        )
    near = near_name(alias, names)
    hint = "Use a name that GET /aliases lists, or make the alias with PUT first."
    if near is not None:
        hint = f"{instead_of(alias, near)}."
    return GatherError("tensor_not_found", f"no alias is named {alias!r}", pointer="/name", hint=hint)


def no_version(reference: str, pointer: str, kept: Sequence[int]) -> GatherError:
    """tensor_not_found for a version that is not kept; `kept` are the numbers of those that are, the oldest first."""
    name, _ = split_reference(reference)
    listed = ", ".join(map(str, kept[-_LISTED_VERSIONS:]))
    if len(kept) > _LISTED_VERSIONS:
        listed = f"{kept[0]}, ..., {listed}"
    return GatherError(
        "tensor_not_found",
        f"{name!r} has no version {split_reference(reference)[1]}; kept are {listed}",
        pointer=pointer,
        hint=f"Use '{name}@{kept[-1]}' at {pointer}, or {name!r} for the current version.",
    )


def no_tensor(name: str, pointer: str, names: Iterable[str]) -> GatherError:
    """tensor_not_found for a name at `pointer`; the hint has the one of `names` that is like it.

    `names` are those that the caller may see.
    """
    near = near_name(name, names)
    hint = None if near is None else f"{instead_of(name, near)}."
    return GatherError("tensor_not_found", f"no tensor is named {name!r}", pointer=pointer, hint=hint)


def over_quota(limit: str, maximum: int) -> GatherError:
    """insufficient_storage for a quota, whose `limit` is "bytes", "tensors" or "aliases"."""
    return GatherError(
        "insufficient_storage",
        f"the quota of the store is {maximum} {limit}",
        facts={"limit": f"store_{limit}", "maximum": maximum},
    )


def not_written(error: OSError) -> GatherError:
    """insufficient_storage for a write that the disk refused. The old content of every tensor is unchanged."""
    return GatherError("insufficient_storage", f"the store could not be written: {error.strerror or error}")


@contextmanager
def storage_errors(undo: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn OSError into insufficient_storage; `undo` runs on every error."""
    try:
        yield
    except BaseException as error:
        if undo is not None:
            with suppress(OSError):
                undo()
        if isinstance(error, OSError):
            raise not_written(error) from error
        raise
