"""Request ids: the form that a caller may send as X-Request-ID, and the creation of new ids.

Every request that gets as far as the application has a number. Unless the caller sent an id, the request's id consists
of this process's prefix and the number in hexadecimal, as in a1b2c3d4e5f6-000000002a. For small gathers, the id is
written together with the times (`increments`). A request that the server refuses before the application sees it has no
number and gets a random id.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Final

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""The valid values of X-Request-ID."""
PREFIX: Final = secrets.token_hex(6)
"""The prefix of this process's request ids."""
DIGITS: Final = 10
"""Number of hexadecimal digits of the request's number in an id."""
COUNTER: Final = itertools.count()
"""The numbers of this process's requests."""


def numbered_id(number: int) -> str:
    """Return the id for request number `number` of this process, for a caller that sent none."""
    return f"{PREFIX}-{number % 16**DIGITS:0{DIGITS}x}"


def random_id() -> str:
    """Return an id for a request that has neither a number nor an id from the caller."""
    return secrets.token_hex(8)
