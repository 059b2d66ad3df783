"""Which versions of the service work together in one cluster: those of one major version, one minor apart at most."""

from __future__ import annotations

import re
from typing import Final

MISMATCH: Final = "version_mismatch"
"""The code of a refusal for this reason. It is told inside a cluster only."""
_RELEASE: Final = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:[^0-9].*)?")


def mismatch(coordinator: str, other: str) -> str:
    """Why a part of version `other` cannot work with this coordinator; "" where it can, or does not say its version."""
    if not other:
        return ""
    own, found = _RELEASE.fullmatch(coordinator), _RELEASE.fullmatch(other)
    if own and found and own[1] == found[1] and abs(int(own[2]) - int(found[2])) <= 1:
        return ""
    return (
        f"it is of version {other[:40]!r} and the coordinator of version {coordinator!r}: one minor version may lie "
        "between them; upgrade one step after the other"
    )
