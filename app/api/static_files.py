"""Files of the pages for people: their types, their ETags, and what a browser may do with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Final, NamedTuple, Self

from fastapi import Request, Response

from app.api.conditional_requests import read_conditions
from app.api.page_layout import PAGE_FIELDS
from app.errors import GatherError

_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file as it is answered."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, name: str) -> Self:
        """A file with this content; its name's ending gives its type."""
        return cls(body, _TYPES[PurePath(name).suffix], f'"{sha256(body).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """The file, or 304 where the request's If-None-Match has its ETag. Raises invalid_field for a malformed one.

        A browser keeps the file and asks each time whether it is still the same, so that an upgrade shows at once.
        """
        headers = {"etag": self.etag, "cache-control": "no-cache", **PAGE_FIELDS}
        none_match = read_conditions(request.scope["context"].headers).none_match
        if none_match is not None and (self.etag in none_match or none_match == ("*",)):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


class StaticFiles:
    """Files by name, each read when it is first asked for; other names are not found."""

    def __init__(self, files: Iterable[Traversable]) -> None:
        self._places = {file.name: file for file in files}
        self._read: dict[str, StaticFile] = {}

    def response(self, name: str, request: Request) -> Response:
        """As `StaticFile.response`. Raises not_found."""
        if name not in self._places:
            raise GatherError("not_found", f"no file of the pages is named {name!r}")
        if name not in self._read:
            self._read[name] = StaticFile.of(self._places[name].read_bytes(), name)
        return self._read[name].response(request)
