"""The target of a request's first line (RFC 9112, 3.2): its path and its query."""

from __future__ import annotations

import httptools

from app.errors import GatherError


def split_target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a target, which is a path in all but requests to proxies. Raises malformed_request."""
    if url[:1] == b"/" and b"#" not in url and url.isascii():
        path, _, query = url.partition(b"?")
        return path, query
    if url == b"*":
        return url, b""
    try:
        parsed = httptools.parse_url(url)
        (parsed.path or b"").decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise GatherError("malformed_request", "the target of the request is neither a path nor an address") from None
    return parsed.path or b"/", parsed.query or b""
