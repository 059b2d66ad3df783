"""Download the file at a URL, to upload it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from .temporary_files import temporary_file

TIMEOUT_S: Final = 30
"""Time limit for connecting, and for each pause in a download, in seconds."""
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(text: str) -> bool:
    """Return whether `text` is a URL rather than a file path."""
    return _URL.match(text) is not None


def split_fragment(url: str) -> tuple[str, str | None]:
    """Split a URL into the part before `#` and the fragment, which is the name of a tensor (None if there is no
    fragment).
    """
    address, _, fragment = url.partition("#")
    return address, unquote(fragment) or None


@contextmanager
def download_temporarily(url: str, progress: Callable[[int, int | None], None]) -> Iterator[Path]:
    """Download `url` (http or https) and yield the path of a temporary file; for `file:`, yield the path in the URL.

    `progress` is called with the number of bytes received and the total, which is None if the server does not send it.
    Raises OSError, or ValueError for another scheme.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        yield Path(unquote(parts.path))
        return
    if parts.scheme not in ("http", "https"):
        raise ValueError(
            f"{shown_url(url)}: this command downloads from http and https only; download the file first, or give "
            "--server if the service may read the URL"
        )
    with temporary_file(prefix="gathernd-") as file:
        for chunk in _chunks(url, progress):
            file.write(chunk)
        file.flush()
        yield Path(file.name)


def _chunks(url: str, progress: Callable[[int, int | None], None]) -> Iterator[bytes]:
    import httpx  # noqa: PLC0415  (slow to import, and needed only for URLs)

    try:
        with httpx.stream("GET", url, timeout=TIMEOUT_S, follow_redirects=True) as answer:
            if answer.status_code != 200:
                raise OSError(f"{shown_url(url)}: the server responded with {answer.status_code}")
            length = answer.headers.get("content-length", "")
            for chunk in answer.iter_bytes():
                yield chunk
                progress(answer.num_bytes_downloaded, int(length) if length.isdecimal() else None)
    except httpx.InvalidURL:  # the exception's text may quote a password
        raise OSError(f"{shown_url(url)} is not a URL, or redirects to an invalid one") from None
    except httpx.HTTPError as error:
        raise OSError(f"{shown_url(url)} could not be downloaded: {error}") from None


def shown_url(url: str) -> str:
    """Return a URL without its query (which may be a signature), user and password."""
    scheme, mark, rest = url.partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"
