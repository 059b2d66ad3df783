"""Build the ASGI scope of a request: check its header and split its target (RFC 9112, 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools

from app.errors import GatherError
from app.server.header_fields import Field, header_too_large, too_many_fields
from app.settings import Settings


def check_size(url: bytes, fields: Sequence[Field], settings: Settings) -> tuple[int, int | None]:
    """Return the number of bytes in the target and fields, and the declared body length (None for a chunked body).

    Raises header_too_large.
    """
    size, length = len(url), b"0"
    for name, value in fields:
        size += len(name) + len(value)
        if name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            length = b""
    if size > settings.max_header_bytes:
        raise header_too_large(settings)
    if len(fields) > settings.max_header_fields:
        raise too_many_fields(settings)
    return size, int(length) if length else None


def request_scope(
    url: bytes, fields: list[Field], method: bytes, http_version: str, asgi_version: str
) -> dict[str, Any]:
    """Return the scope without the connection's own entries. Raises malformed_request."""
    raw_path, query, authority = _split_target(url)
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": asgi_version, "spec_version": "2.3"},
        "http_version": http_version,
        "root_path": "",
        "headers": fields if authority is None else _with_host(fields, authority, http_version),
        "method": method.decode("ascii"),
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
    }


def header_without_offer(url: bytes, fields: Sequence[Field], method: bytes, http_version: str) -> bytes:
    """Return the bytes of a header without its offer to upgrade the connection."""
    lines = [b"%b %b HTTP/%b" % (method, url, http_version.encode())]
    for name, value in fields:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
            lines.append(b"connection:" + b",".join(tokens))
        elif name != b"upgrade":
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join((*lines, b"", b""))


class _Target(NamedTuple):
    """The parts of a target. `authority` is the host and port of an absolute target, or None for a path."""

    path: bytes
    query: bytes
    authority: bytes | None = None


def _split_target(url: bytes) -> _Target:
    """Split a target. It is a path, except in requests meant for proxies. Raises malformed_request."""
    if url[:1] == b"/" and b"#" not in url and url.isascii():
        path, _, query = url.partition(b"?")
        return _Target(path, query)
    if url == b"*":
        return _Target(url, b"")
    try:
        parsed = httptools.parse_url(url)
        (parsed.path or b"").decode("ascii")
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        raise GatherError("malformed_request", "the target of the request is neither a path nor an address") from None
    return _Target(parsed.path or b"/", parsed.query or b"", _authority(url))


def _with_host(fields: Sequence[Field], authority: bytes, version: str) -> list[Field]:
    """Replace the value of Host with the authority of the target (RFC 9112, 3.2.2).

    The field needs to be added only in HTTP/1.0, because HTTP/1.1 requires it anyway.
    """
    found = [(name, authority if name == b"host" else value) for name, value in fields]
    if version == "1.0" and all(name != b"host" for name, _ in found):
        found.append((b"host", authority))
    return found


def _authority(url: bytes) -> bytes | None:
    """Return the host and port of an absolute target, or None for a path."""
    _, found, rest = url.partition(b"://")
    if url[:1] == b"/" or not found:
        return None
    end = next((at for at, sign in enumerate(rest) if sign in b"/?#"), len(rest))
    return rest[:end]
