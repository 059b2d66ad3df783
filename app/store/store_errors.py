"""The errors that the store answers with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from app.errors import GatherError
from app.near_name import instead_of, near_name
from app.tensors.tensor_name import RESERVED, reserved_name


def damaged(name: str, why: str) -> GatherError:
    """tensor_damaged for tensor `name`."""
    return GatherError("tensor_damaged", f"the content of {name!r} is damaged: {why}")


def unreadable(name: str, error: OSError) -> GatherError:
    """tensor_damaged for tensor `name`, whose file the system cannot read."""
    return damaged(name, f"its file cannot be read: {os.strerror(error.errno or 0)}")


def not_found(name: str, names: Iterable[str] = ()) -> GatherError:
    """tensor_not_found for a name in the path that no tensor has, invalid_field where the name is reserved.

    `names` are those that the caller may see.
    """
    return reserved_name(name) if name in RESERVED else no_tensor(name, "/name", names)


def no_tensor(name: str, pointer: str, names: Iterable[str]) -> GatherError:
    """tensor_not_found for a name at `pointer`; the hint has the one of `names` that is like it."""
    near = near_name(name, names)
    hint = None if near is None else f"{instead_of(name, near)}."
    return GatherError("tensor_not_found", f"no tensor is named {name!r}", pointer=pointer, hint=hint)


def over_quota(limit: str, maximum: int) -> GatherError:
    """insufficient_storage for a quota, whose `limit` is "bytes" or "tensors"."""
    return GatherError(
        "insufficient_storage",
        f"the quota of the store is {maximum} {limit}",
        facts={"limit": f"store_{limit}", "maximum": maximum},
    )


def not_written(error: OSError) -> GatherError:
    """insufficient_storage for a write that the disk refused. The old content of every tensor is unchanged."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return GatherError("insufficient_storage", f"the store could not be written: {reason}")


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
