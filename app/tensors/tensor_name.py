"""Valid names of resident tensors and aliases, and references to a version of a tensor: `NAME@7`."""

from __future__ import annotations

import re
from typing import Final

from app.errors import GatherError, invalid_field
from app.tensors.lookup_call import LOOKUP
from app.tensors.operator_signature import OPERATOR_NAMES

PATTERN: Final = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Pattern for JSON Schema, which allows a match anywhere in a text."""
TENSOR_NAME: Final = re.compile(PATTERN.removeprefix("^").removesuffix("$"))
"""Pattern for `fullmatch`. (`$` would accept a trailing line break.)"""
_VERSION: Final = "@[1-9][0-9]{0,18}"
REFERENCE_PATTERN: Final = f"{PATTERN.removesuffix('$')}({_VERSION})?$"
"""Pattern for JSON Schema: the name of a tensor or alias, or one version of a tensor."""
REFERENCE: Final = re.compile(REFERENCE_PATTERN.removeprefix("^").removesuffix("$"))
_IN_PATH: Final = "/name"
"""Pointer of a name in the path of a request."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
RESERVED: Final = (*OPERATOR_NAMES, LOOKUP, "stats")
"""Names that no new tensor can have, because they have another meaning where tensors are models.

A tensor that got its name before the name was reserved can be read, changed and removed, but not replaced.
"""


def check_name(name: str, pointer: str = _IN_PATH) -> None:
    """Raise invalid_field at `pointer` if no tensor can have this name. Accepts reserved names."""
    if not TENSOR_NAME.fullmatch(name):
        hint = f"Use a name such as '{tensor_name_like(name)}'."
        if not name and pointer == _IN_PATH:
            hint = "Put a name behind the slash."
        raise invalid_field(
            pointer, "the name of a tensor is 1 to 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit", hint
        )


def check_new_name(name: str, pointer: str = _IN_PATH) -> None:
    """Raise invalid_field at `pointer` if no new tensor may be given this name."""
    if "@" in name and REFERENCE.fullmatch(name):
        own = name.partition("@")[0]
        raise invalid_field(
            pointer,
            "a version is not uploaded under a number of the caller's choice: each PUT of a name makes the next one",
            f"PUT {own!r}, without the number.",
        )
    check_name(name, pointer)
    if name in RESERVED:
        raise reserved_name(name, pointer)


def check_reference(reference: str) -> None:
    """Raise invalid_field at /name if this is neither a name nor a reference to one version of a tensor, such as
    `NAME@7`.
    """
    if not REFERENCE.fullmatch(reference):
        name, at, version = reference.partition("@")
        if at and TENSOR_NAME.fullmatch(name):
            raise invalid_field(
                "/name",
                f"{version[:32]!r} is not the number of a version: those are 1, 2, 3 and so on, of at most 19 digits",
                reference_hint(reference, "/name"),
            )
        check_name(name)


def split_reference(reference: str) -> tuple[str, int | None]:
    """Split a reference into name and version number (None if it has none). Invalid references are returned unsplit."""
    if "@" not in reference or not REFERENCE.fullmatch(reference):
        return reference, None
    name, _, version = reference.partition("@")
    return name, int(version)


def tensor_name_like(name: str) -> str:
    """Return a valid name similar to an invalid one."""
    return _NOT_IN_NAMES.sub("_", name)[:128].lstrip("._-") or "items"


def reference_hint(reference: str, pointer: str) -> str:
    """Return the hint for an invalid name or version at `pointer`."""
    name, at, _ = reference.partition("@")
    if at and TENSOR_NAME.fullmatch(name):
        return f"Use {name!r} at {pointer} for the current version, or a number that GET /tensors/{name} lists."
    return f"Use a name such as '{tensor_name_like(name)}' at {pointer}."


def reserved_name(name: str, pointer: str = _IN_PATH) -> GatherError:
    """Return the error for a reserved name that no tensor has."""
    return invalid_field(pointer, f"the name {name!r} is reserved", f"Use a name such as '{name}_1'.")
