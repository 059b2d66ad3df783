"""The id of a request: the form of one that a caller may send as X-Request-ID, and the making of one where none came.

A request that reaches the application is numbered, and its id is the prefix of this process and the number in
hexadecimal: a1b2c3d4e5f6-000000002a. Answers to small gathers have it written with their times (`increments`). A
request that the server refuses before the application sees it has no number: it gets a random id.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Final

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""What a caller may send as X-Request-ID."""
PREFIX: Final = secrets.token_hex(6)
"""What the ids of this process's requests begin with."""
DIGITS: Final = 10
"""How many hexadecimal digits the number has in the id."""
COUNTER: Final = itertools.count()
"""Numbers the requests of this process."""


def numbered_id(number: int) -> str:
    """The id of the `number`th request of this process, where it came without one."""
    return f"{PREFIX}-{number % 16**DIGITS:0{DIGITS}x}"


def random_id() -> str:
    """The id of a request without a number, where it came without an id."""
    return secrets.token_hex(8)
