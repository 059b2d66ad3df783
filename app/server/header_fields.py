"""Rules for header fields: which may be repeated, which are removed, and how a body is framed.

A field whose value is a list may be repeated and counts as one list (RFC 9110, 5.3); any other field may occur only
once. Fields that hold a secret are removed before a route sees the header; only the SHA-256 of an API key is kept
(`app.security.api_keys`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.errors import GatherError
from app.settings import Settings

Field = tuple[bytes, bytes]

SINGLE: Final = frozenset(
    (
        b"access-control-request-method",
        b"authorization",
        b"content-encoding",  # a list in RFC 9110; this service supports a single member
        b"content-length",
        b"content-type",
        b"host",
        b"idempotency-key",
        b"inference-header-content-length",
        b"origin",
        b"transfer-encoding",  # also a list, but joining two of them would allow request smuggling past proxies
        b"x-gathernd-node",
        b"x-gathernd-timeout",
        b"x-request-id",
    )
)
"""Fields that this service reads and that are not lists.

A repeated traceparent is ignored, as its specification requires.
"""
SECRETS: Final = frozenset((b"authorization", b"cookie", b"proxy-authorization"))
"""Fields that are removed.

The service reads only the first one; the others may come from a browser or be meant for a proxy.
"""


class _Trailer(list[Field]):
    """Discards the fields of a trailer. They follow the last chunk and are not part of the header."""

    def append(self, field: Field) -> None:
        """Drop the field."""


TRAILER: Final = _Trailer()


def combine_repeated(sent: Sequence[Field]) -> dict[bytes, bytes]:
    """Return the fields by name. The values of a repeated field are joined with commas, in order."""
    found: dict[bytes, bytes] = {}
    for name, value in sent:
        found[name] = b"%b, %b" % (found[name], value) if name in found else value
    return found


def check_transfer_coding(sent: Sequence[Field], version: str) -> None:
    """Check that the only transfer coding is `chunked`, and that the request is HTTP/1.1 (RFC 9112, 6.1).

    The parser decodes `chunked` and ignores codings before it. It also accepts lists with empty elements, and `chunked`
    in HTTP/1.0. Proxies interpret both of these differently. Raises malformed_request.
    """
    codings = [value for name, value in sent if name == b"transfer-encoding"]
    if not codings:
        return
    if version == "1.0":
        detail = "Transfer-Encoding is not accepted with HTTP/1.0"
    elif len(codings) > 1:
        detail = "Transfer-Encoding occurs more than once"
    elif codings[0].strip(b" \t").lower() != b"chunked":
        detail = f"the transfer coding {codings[0].decode('latin-1')!r} is not supported"
    elif any(name == b"content-length" for name, _ in sent):
        detail = "both Transfer-Encoding and Content-Length were sent"
    else:
        return
    raise GatherError(
        "malformed_request",
        detail,
        hint="Send the body with Content-Length or, over HTTP/1.1, with the one field Transfer-Encoding: chunked. Name "
        "gzip or deflate in Content-Encoding.",
    )


def find_repeated_single(sent: Sequence[Field]) -> bytes | None:
    """Return the first field that is repeated although it is not a list, or None."""
    seen: set[bytes] = set()
    for name, _ in sent:
        if name in SINGLE and name in seen:
            return name
        seen.add(name)
    return None


def header_too_large(settings: Settings) -> GatherError:
    """Return the error for a header with too many bytes."""
    return GatherError(
        "header_too_large",
        f"the header has more than {settings.max_header_bytes} bytes",
        facts={"limit": "header_bytes", "maximum": settings.max_header_bytes},
    )


def too_many_fields(settings: Settings) -> GatherError:
    """Return the error for a header with too many fields."""
    return GatherError(
        "header_too_large",
        f"the header has more than {settings.max_header_fields} fields",
        facts={"limit": "header_fields", "maximum": settings.max_header_fields},
    )
