"""Find when the certificates of a PEM file expire, by parsing their DER.

Python's ssl module gives the expiry only for a peer's certificate.

A certificate begins (RFC 5280, 4.1) with

    SEQUENCE { SEQUENCE { [0] version, INTEGER serial, SEQUENCE signature, SEQUENCE issuer,
                          SEQUENCE { notBefore, notAfter }, ...

where `[0] version` is optional. A time is either UTCTime, with a two-digit year, or GeneralizedTime, with four digits.
"""

from __future__ import annotations

import re
from base64 import b64decode
from datetime import UTC, datetime
from typing import Final, NamedTuple

_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.*?)-----END (?:X509 |TRUSTED )?CERTIFICATE-----", re.DOTALL
)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


class _Element(NamedTuple):
    """An element of DER: its tag, and the offsets at which its content begins and ends."""

    tag: int
    start: int
    end: int


def expiry(pem: bytes) -> float:
    """Return the earliest expiry of the certificates in `pem`, in seconds since 1970. The chain is invalid afterwards.

    OpenSSL has already parsed the certificates, and there is at least one.
    """
    return min(_not_after(b64decode(body)) for body in _CERTIFICATE.findall(pem))


def _not_after(der: bytes) -> float:
    certificate = _element(der, 0)
    field = _element(der, _element(der, certificate.start).start)
    for _ in range(4 if field.tag == _VERSION else 3):
        field = _element(der, field.end)
    not_before = _element(der, field.start)
    time = _element(der, not_before.end)
    text = der[time.start : time.end].decode("ascii")
    if time.tag == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> _Element:
    size, start = der[at + 1], at + 2
    if size & 0x80:  # the long form: the length takes this many bytes
        start += size & 0x7F
        size = int.from_bytes(der[at + 2 : start], "big")
    return _Element(der[at], start, start + size)
