"""The API key in a request's Authorization, of which only the SHA-256 goes on."""

from __future__ import annotations

from hashlib import sha256


def key_digest(authorization: bytes) -> bytes:
    """The SHA-256 of the key in a field Authorization; b"" where that is not of the form `Bearer KEY`."""
    scheme, _, key = authorization.partition(b" ")
    return sha256(key.strip(b" \t")).digest() if scheme.lower() == b"bearer" else b""
