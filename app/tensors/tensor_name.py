"""The names that resident tensors may have."""

from __future__ import annotations

import re
from typing import Final

from app.errors import GatherError, invalid_field
from app.tensors.lookup_call import LOOKUP
from app.tensors.operator_signature import OPERATOR_NAMES

PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""As JSON Schema has it, where a pattern may match anywhere in a text."""
TENSOR_NAME: Final = re.compile(PATTERN.removeprefix("^").removesuffix("$"))
"""For `fullmatch`: `$` would let a line break follow."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
RESERVED: Final = (*OPERATOR_NAMES, LOOKUP, "stats")
"""Names that have a meaning of their own where a tensor is a model of the inference protocol.

A tensor that got such a name before it was reserved stays: it is read, changed and removed, and not replaced.
"""


def check_name(name: str) -> None:
    """Raises invalid_field at /name unless a tensor may have this name, be it from before it was reserved."""
    if not TENSOR_NAME.fullmatch(name):
        raise invalid_field(
            "/name",
            "the name of a tensor is 1 to 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit",
            f"Use a name such as '{tensor_name_like(name)}'." if name else "Put the name of a tensor behind the slash.",
        )


def check_new_name(name: str) -> None:
    """Raises invalid_field at /name unless a tensor may be given this name."""
    check_name(name)
    if name in RESERVED:
        raise reserved_name(name)


def tensor_name_like(name: str) -> str:
    """A name that a tensor may have, like one that it may not have."""
    return _NOT_IN_NAMES.sub("_", name)[:128].lstrip("._-") or "items"


def reserved_name(name: str) -> GatherError:
    """The error for a reserved name that no tensor has."""
    return invalid_field("/name", f"the name {name!r} is reserved", f"Use a name such as '{name}_1'.")
