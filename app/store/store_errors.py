"""The errors that the store reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from app.catalogue import name_errors
from app.catalogue.records import NameRecord, Version
from app.errors import GatherError
from app.store.store_interface import Store
from app.tensors.tensor_name import split_reference


def damaged(name: str, why: str) -> GatherError:
    """Return tensor_damaged for tensor `name`."""
    return GatherError("tensor_damaged", f"the data of {name!r} is damaged: {why}")


def unreadable(name: str, error: OSError) -> GatherError:
    """Return tensor_damaged for tensor `name`, because the system cannot read its file."""
    return damaged(name, f"its file cannot be read: {error.strerror or error}")


def unsettled() -> GatherError:
    """Return overloaded for a replicated version whose primary has not yet reported what is committed."""
    return GatherError("overloaded", "the service does not know yet what its replicas have committed", retry_after=1)


def not_found(reference: str, store: Store, *, tell_names: bool = False) -> GatherError:
    """Return tensor_not_found for a reference in the path that refers to nothing, invalid_field for a reserved name."""
    own, names = _record_and_names(reference, store, tell_names=tell_names)
    return name_errors.not_found(own, reference, names)


def unknown_reference(reference: str, pointer: str, store: Store) -> GatherError:
    """Return tensor_not_found for a reference at `pointer` that refers to no tensor, version or alias of `store`."""
    own, names = _record_and_names(reference, store, tell_names=True)
    return name_errors.unknown_reference(own, reference, pointer, names)


def _record_and_names(reference: str, store: Store, *, tell_names: bool) -> tuple[NameRecord[Version], Iterable[str]]:
    """Return the record of a reference's name, and the names that may be suggested to the caller."""
    listed = (store.names, store.alias_names) if tell_names else ()
    return store.record_of(split_reference(reference)[0]), (name for names in listed for name in names())


def has_keys(name: str) -> GatherError:
    """Return invalid_field for keys sent to tensor `name`, because it already has keys."""
    return GatherError(
        "invalid_field",
        f"the current version of {name!r} has keys already",
        pointer="/keys",
        hint="Upload its next version with keys and data, as safetensors.",
    )


def keys_not_implemented(name: str) -> GatherError:
    """Return not_implemented for keys sent without data to tensor `name`; its row ranges are on other machines."""
    return GatherError(
        "not_implemented",
        f"keys cannot be added to {name!r} separately: a cluster places rows by their keys when they are uploaded",
        hint=f"Upload keys and data together with PUT /tensors/{name}, as safetensors.",
    )


def over_quota(limit: str, maximum: int) -> GatherError:
    """Return insufficient_storage for an exceeded quota. `limit` is "bytes", "tensors" or "aliases"."""
    return GatherError(
        "insufficient_storage",
        f"this would exceed the store's quota of {maximum} {limit}",
        facts={"limit": f"store_{limit}", "maximum": maximum},
    )


@contextmanager
def storage_errors(undo: Callable[[], None] | None = None) -> Iterator[None]:
    """Convert an OSError from a failed write to insufficient_storage. `undo` is called on every error.

    No tensor's data has changed when this happens.
    """
    try:
        yield
    except BaseException as error:
        if undo is not None:
            with suppress(OSError):
                undo()
        if isinstance(error, OSError):
            detail = f"the store could not be written: {error.strerror or error}"
            raise GatherError("insufficient_storage", detail) from error
        raise
