"""The target of a request's first line (RFC 9112, 3.2): its path, its query and, of an address, its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import httptools

from app.errors import GatherError
from app.server.header_fields import Field


class Target(NamedTuple):
    """The parts of a target. `authority` is the host, with its port, of an address, None for a path."""

    path: bytes
    query: bytes
    authority: bytes | None = None


def split_target(url: bytes) -> Target:
    """Split a target, which is a path in all but requests to proxies. Raises malformed_request."""
    if url[:1] == b"/" and b"#" not in url and url.isascii():
        path, _, query = url.partition(b"?")
        return Target(path, query)
    if url == b"*":
        return Target(url, b"")
    try:
        parsed = httptools.parse_url(url)
        (parsed.path or b"").decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise GatherError("malformed_request", "the target of the request is neither a path nor an address") from None
    return Target(parsed.path or b"/", parsed.query or b"", _authority(url))


def with_host(fields: Sequence[Field], authority: bytes, version: str) -> list[Field]:
    """Replace the value of Host with the authority of the target (RFC 9112, 3.2.2).

    A request of HTTP/1.1 must have Host all the same, so it is added to one of HTTP/1.0 only.
    """
    found = [(name, authority if name == b"host" else value) for name, value in fields]
    if version == "1.0" and all(name != b"host" for name, _ in found):
        found.append((b"host", authority))
    return found


def _authority(url: bytes) -> bytes | None:
    """The host and port of an address, with all that stands before its path: user names are for no server."""
    _, found, rest = url.partition(b"://")
    if url[:1] == b"/" or not found:
        return None
    end = next((at for at, sign in enumerate(rest) if sign in b"/?#"), len(rest))
    return rest[:end]
