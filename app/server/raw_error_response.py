"""Build the bytes of the error response to a request that the server itself refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.errors import GatherError

EVERYWHERE: Final = ((b"x-content-type-options", b"nosniff"),)
"""Fields of every response, including the application's: browsers must not guess a type other than Content-Type."""


class RenderedError(NamedTuple):
    """An error over HTTP: the status, its header fields, and its body."""

    status: int
    fields: Sequence[tuple[bytes, bytes]]
    content_type: bytes
    body: bytes


ErrorRenderer = Callable[[GatherError, str, str], RenderedError]
"""Renders the response to a request from its error, its id and its path ("" if unknown)."""


def raw_error_response(rendered: RenderedError, request_id: str, added: bytes = b"") -> bytes:
    """Build a complete HTTP response that closes its connection. `added` contains additional header lines."""
    return b"".join(
        (
            STATUS_LINE[rendered.status],
            *(b"%b: %b\r\n" % field for field in (*EVERYWHERE, *rendered.fields)),
            b"content-type: ",
            rendered.content_type,
            b"\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (len(rendered.body), request_id.encode()),
            added,
            b"server-timing: parse;dur=0\r\nconnection: close\r\n\r\n",
            rendered.body,
        )
    )
