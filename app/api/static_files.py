"""Files of the web pages: their types, their ETags, and the permissions of a page."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import PurePath
from typing import Final, NamedTuple, Self

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import etag_field, read_conditions
from app.api.page_layout import PAGE_FIELDS

_TYPES: Final[Mapping[str, bytes]] = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file and its header fields."""

    body: bytes
    media_type: bytes
    etag: str

    @classmethod
    def of(cls, body: bytes, name: str) -> Self:
        """Return a file with this content; the suffix of `name` determines its media type."""
        return cls(body, _TYPES[PurePath(name).suffix], f'"{sha256(body).hexdigest()[:32]}"')

    async def send(self, context: RequestContext) -> None:
        """Answer with the file, or 304 if the request's If-None-Match has its ETag. Raises invalid_field.

        Browsers cache the file and revalidate it each time, so that an upgrade takes effect at once.
        """
        fields = (etag_field(self.etag), (b"cache-control", b"no-cache"), *PAGE_FIELDS)
        none_match = read_conditions(context.headers).none_match
        if none_match is not None and (self.etag in none_match or none_match == ("*",)):
            await context.send_empty(304, *fields)
        else:
            await context.send(200, self.media_type, self.body, *fields)
