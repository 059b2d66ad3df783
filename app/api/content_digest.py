"""The header field Content-Digest (RFC 9530): the SHA-256 of a body as sent."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Final

from app.errors import GatherError, invalid_field

_MEMBER: Final = re.compile(r"\s*([a-z0-9*-]+)\s*=\s*:([A-Za-z0-9+/=]*):\s*")


def read_digest(field: bytes | None) -> bytes | None:
    """The SHA-256 of a Content-Digest field (RFC 9530), None where there is none. Raises invalid_field.

    Digests of other algorithms are not checked. Two of SHA-256 that differ cannot both hold and are invalid.
    """
    if field is None:
        return None
    found: set[bytes] = set()
    for member in field.decode("latin-1").split(","):
        match = _MEMBER.fullmatch(member)
        if match is None:
            raise _malformed()
        if match[1] == "sha-256":
            try:
                found.add(base64.b64decode(match[2], validate=True))
            except binascii.Error:
                raise _malformed() from None
    if len(found) > 1 or any(len(value) != hashlib.sha256().digest_size for value in found):
        raise _malformed()
    return found.pop() if found else None


def _malformed() -> GatherError:
    return invalid_field(
        "/content-digest",
        "Content-Digest must be as in sha-256=:BASE64:",
        "Send the SHA-256 of the body in base64, as sha-256=:BASE64:, or leave out the field Content-Digest.",
    )
