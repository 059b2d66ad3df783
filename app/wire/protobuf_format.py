"""Numbers of protobuf's encoding, and of what `find_fields` says, in Python and compiled (see `protobuf_fields`)."""

from __future__ import annotations

from typing import Final

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5
LONGEST: Final = 10
"""Bytes of the longest varint."""
ROW: Final = 9
"""Words that `find_fields` writes for a field: see `protobuf_fields.Field`."""
INNER_ROW: Final = 4
"""Words that `cut_fields` writes for what it cuts out of a field: which of the rows that field is, a tag, 0 for what is
cut out itself, and where the value begins and ends."""
NONE, ONE, OTHERWISE = range(3)
"""Of a field within which fields of one number were looked for: there is none, there is one, or there are several, or
something is wrong within."""
FINE, TOO_MANY, NO_END, NO_LENGTH, WIRE_TYPE, BEHIND = range(6)
"""What is wrong with a field: nothing; it is one more than were to be looked at; a number of it does not end; its
length is missing; its wire type is none; it ends behind the message, or has no number."""
