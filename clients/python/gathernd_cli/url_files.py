"""Files behind a URL, fetched for an upload: by ranges, four at once, into a temporary file; in one answer, once and in
order, where a server answers no ranges.

https and http go through httpx, other schemes (s3, gs, az) through obstore (extra `cloud`), which finds credentials in
the environment as the tools of each provider do. Of a safetensors file with several tensors only the one that is wanted
comes.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from .temporary_files import temporary_file

PIECE_BYTES: Final = 8 << 20
AT_ONCE: Final = 4
HEAD_BYTES: Final = 1 << 16
ATTEMPTS: Final = 6
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_FIELDS: Final = "latin-1"
"""How header fields are decoded and encoded: an ETag may have any octets, and goes back as it came."""


class _Ranges(Protocol):
    """A file of `size` bytes, None if its server does not say; so many ranges of it may be read at once."""

    size: int | None
    at_once: int

    def read(self, begin: int, end: int) -> Any:
        """The bytes from `begin` up to `end`; fewer where a file of unknown size ends before."""

    def close(self) -> None:
        """Close what is open."""


def is_url(text: str) -> bool:
    """Whether this is a URL and not the path of a file."""
    return _URL.match(text) is not None


def split_fragment(url: str) -> tuple[str, str | None]:
    """A URL without its fragment, and the fragment, which names a tensor."""
    address, _, fragment = url.partition("#")
    return address, unquote(fragment) or None


@contextmanager
def fetched(url: str, tensor: str | None, progress: Callable[[int, int], None]) -> Iterator[Path]:
    """A temporary file with what an upload needs of the file at a URL: all of it, or one tensor of a safetensors file.

    `progress` is called with the bytes done and those in all. Raises OSError, and ValueError for what cannot be read.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        yield Path(unquote(parts.path))
        return
    source: _Ranges = _Https(url) if parts.scheme in ("https", "http") else _Stored(url)
    with closing(source):
        yield from _fetched(source, url, tensor, progress)


def _fetched(source: _Ranges, url: str, tensor: str | None, progress: Callable[[int, int], None]) -> Iterator[Path]:
    most = HEAD_BYTES if source.size is None else min(HEAD_BYTES, source.size)
    head = bytes(source.read(0, most)) if most else b""
    if source.size is None and len(head) < HEAD_BYTES:
        source.size = len(head)
    prologue, begin, end, head = _wanted(source, head, tensor, url)
    with temporary_file(prefix="gathernd-") as file:
        there = head[begin:end]
        file.write(prologue + there)
        file.flush()
        first = begin + len(there)
        try:
            _copy(
                source,
                first,
                end,
                file.fileno(),
                len(prologue) + len(there),
                lambda done: progress(done - begin, end - begin),
            )
        except EOFError:
            raise OSError(f"{shown_url(url)} ends before what its header says") from None
        if source.size is None and source.read(end, end + 1):
            raise OSError(f"{shown_url(url)} has more bytes than its header says")
        yield Path(file.name)


def _wanted(source: _Ranges, head: bytes, tensor: str | None, url: str) -> tuple[bytes, int, int, bytes]:
    """What the temporary file begins with, the span of the source that follows, and what was read of the source."""
    if head.startswith(b"\x93NUMPY"):
        if tensor is not None:
            raise ValueError(f"{shown_url(url)} is an npy file, which has one tensor and no names")
        return b"", 0, _npy_bytes(head, url) if source.size is None else source.size, head
    # They import NumPy, which a help does not need.
    from gathernd._upload_sources import TABLE_MAGIC  # noqa: PLC0415

    if head.startswith(TABLE_MAGIC):
        if source.size is None:
            raise ValueError(f"{shown_url(url)}: the server does not say how long it is; download it first")
        return b"", 0, source.size, head
    from gathernd._safetensors import MAX_HEADER_BYTES, tensor_of_file  # noqa: PLC0415

    size = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{" or size > min(MAX_HEADER_BYTES, math.inf if source.size is None else source.size - 8):
        raise ValueError(f"{shown_url(url)} is neither an npy nor a safetensors file")
    if len(head) < 8 + size:
        head += bytes(source.read(len(head), 8 + size))
    first = 8 + size
    held = None if source.size is None else source.size - first
    try:
        found = tensor_of_file(head[8:first], held, tensor, shown_url(url), "URL#NAME")
    except TypeError as error:
        raise ValueError(str(error)) from None
    entry = {
        "dtype": found.element_type.safetensors,
        "shape": found.shape,
        "data_offsets": [0, found.end - found.begin],
    }
    one = json.dumps({found.name: entry}).encode()
    if source.size is None and found.end < found.described:
        source.size = first + found.described  # the end of the file is not reached
    return len(one).to_bytes(8, "little") + one, first + found.begin, first + found.end, head


def _npy_bytes(head: bytes, url: str) -> int:
    """How many bytes an npy file has by its own header."""
    import numpy as np  # noqa: PLC0415  (a help does not need it)

    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{shown_url(url)} is not a sound npy file: {error}") from None
    return max(file.tell() + math.prod(shape) * dtype.itemsize, len(head))


def _copy(source: _Ranges, begin: int, end: int, fd: int, place: int, progress: Callable[[int], None]) -> None:
    """Write the bytes from `begin` up to `end` into a file at `place`; `progress` is told how far they are.

    Raises EOFError where there are fewer.
    """

    def piece(first: int) -> int:
        last = min(first + PIECE_BYTES, end)
        content = memoryview(source.read(first, last))
        if len(content) < last - first:
            raise EOFError
        written = 0
        while written < len(content):
            written += os.pwrite(fd, content[written:], place + first - begin + written)
        return last - first

    done = begin
    progress(done)
    with ThreadPoolExecutor(source.at_once) as threads:
        for size in threads.map(piece, range(begin, end, PIECE_BYTES)):
            done += size
            progress(done)


class _Https:
    """A file of a server, of one content, resumed where a connection is cut if the server answers ranges."""

    def __init__(self, url: str) -> None:
        import httpx  # noqa: PLC0415  (an upload of a file needs it not)

        self._library = httpx
        self._client = httpx.Client(timeout=30, follow_redirects=True, headers={"accept-encoding": "identity"})
        self._url = url
        self._validators: dict[str, str] = {}
        self._whole: _WholeAnswer | None = None
        self.size: int | None = 0
        self.at_once = AT_ONCE
        try:
            answer = self._ask(0, 1)
        except httpx.TransportError as error:
            self.close()
            raise OSError(f"{shown_url(url)} could not be reached: {error}") from None
        except BaseException:
            self.close()
            raise
        if answer.status_code == 200:
            self._whole = _WholeAnswer(answer, url, httpx.TransportError)
            self.size, self.at_once = self._whole.size, 1
            return
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
        answer.close()
        if found is None:
            self.close()
            raise ValueError(f"{shown_url(url)} is empty, or its server answers a range without saying which")
        self.size = int(found[2])
        self._validators = _validators(answer.headers)

    def read(self, begin: int, end: int) -> bytearray:
        if self._whole is not None:
            return self._whole.read(begin, end)
        content = bytearray(end - begin)
        done = failures = 0
        while done < len(content):
            came = done
            with suppress(self._library.TransportError):
                answer = self._ask(begin + done, end)
                try:
                    for piece in answer.iter_raw():
                        if done + len(piece) > len(content):
                            raise OSError(f"{shown_url(self._url)}: the server sends more than it was asked for")
                        content[done : done + len(piece)] = piece
                        done += len(piece)
                finally:
                    answer.close()
            if done < len(content):  # an answer that ends early is a connection that was cut
                failures = 1 if done > came else failures + 1
                if failures >= ATTEMPTS:
                    raise OSError(f"{shown_url(self._url)}: the connection was cut {failures} times in a row")
                sleep(0.1 * 2**failures)
        return content

    def close(self) -> None:
        if self._whole is not None:
            self._whole.close()
        self._client.close()

    def _ask(self, begin: int, end: int) -> Any:
        headers = {"range": f"bytes={begin}-{end - 1}"}
        if "etag" in self._validators:
            headers["if-range"] = self._validators["etag"]
        for attempt in range(ATTEMPTS):
            answer = self._send(headers)
            if answer.status_code not in (429, 500, 502, 503, 504):
                break
            answer.close()
            sleep(0.1 * 2**attempt)
        problem: Exception | None = None
        if answer.status_code not in (200, 206, 416):
            problem = OSError(f"{shown_url(self._url)}: the server answered {answer.status_code}")
        elif self.size and not self._is_of_same_content(answer, begin):
            problem = OSError(f"{shown_url(self._url)} was changed meanwhile")
        elif answer.headers.get("content-encoding", "identity").lower() != "identity":
            problem = ValueError(f"{shown_url(self._url)} is sent compressed: download it first")
        if problem is not None:
            answer.close()
            raise problem
        return answer

    def _send(self, headers: dict[str, str]) -> Any:
        """The answer, whose body is yet to be read. Raises OSError, and TransportError for what may pass."""
        fields = self._library.Headers(headers, _FIELDS)
        try:
            answer = self._client.send(self._client.build_request("GET", self._url, headers=fields), stream=True)
        except self._library.TooManyRedirects:
            raise OSError(f"{shown_url(self._url)}: there are too many redirects") from None
        except self._library.InvalidURL:
            raise OSError(f"{shown_url(self._url)} is no URL, or redirects to none") from None
        answer.headers.encoding = _FIELDS
        return answer

    def _is_of_same_content(self, answer: Any, begin: int) -> bool:
        came = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "")) if answer.status_code == 206 else None
        if came is None or (int(came[1]), int(came[2])) != (begin, self.size):
            return False
        return _validators(answer.headers) == self._validators


def _validators(headers: Any) -> dict[str, str]:
    """What tells contents apart: a strong ETag, else a weak one and the time of the last change."""
    etag = headers.get("etag", "")
    if etag.startswith('"'):
        return {"etag": etag}
    return {"weak etag": etag, "last-modified": headers.get("last-modified", "")}


class _WholeAnswer:
    """A file that a server without ranges sends in one answer, read once and in order."""

    def __init__(self, answer: Any, url: str, cut: type[Exception]) -> None:
        declared = answer.headers.get("content-length", "")
        self.size = int(declared) if declared.isdecimal() else None
        self._answer = answer
        self._pieces = answer.iter_raw()
        self._rest = memoryview(b"")
        self._place = 0
        self._url = url
        self._cut = cut

    def read(self, begin: int, end: int) -> bytearray:
        content = bytearray()
        try:
            while self._place < end:
                if not self._rest:
                    piece = next(self._pieces, None)
                    if piece is None:
                        break
                    self._rest = memoryview(piece)
                taken, self._rest = self._rest[: end - self._place], self._rest[end - self._place :]
                self._place += len(taken)
                content += taken[max(0, begin - self._place + len(taken)) :]
        except self._cut:
            raise OSError(
                f"{shown_url(self._url)}: the connection was cut, and its server answers no ranges to go on from "
                "there; give the command again"
            ) from None
        return content

    def close(self) -> None:
        self._answer.close()


class _Stored:
    """An object of a store: s3://, gs://, az:// and what else obstore has."""

    def __init__(self, url: str) -> None:
        try:
            import obstore  # noqa: PLC0415  (of an extra)
            import obstore.store  # noqa: PLC0415
        except ImportError:
            raise ValueError(
                f"{shown_url(url)} needs obstore: pip install './clients/python[cloud]' in a checkout"
            ) from None
        parts = urlsplit(url)
        self._url = url
        self._library: Any = obstore
        self._path = unquote(parts.path).removeprefix("/")
        options: Any = {}
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            options = {"client_options": {"allow_http": True}}
        try:
            self._store = obstore.store.from_url(f"{parts.scheme}://{parts.netloc}", **options)
            found = self._library.head(self._store, self._path)
        except Exception as error:
            raise OSError(f"{shown_url(url)} cannot be read: {type(error).__name__}") from error
        self.size: int | None = found["size"]
        self.at_once = AT_ONCE
        self._etag = found["e_tag"]

    def read(self, begin: int, end: int) -> Any:
        options: dict[str, Any] = {"range": (begin, end)}
        if self._etag is not None:
            options["if_match"] = self._etag
        try:
            content = self._library.get(self._store, self._path, options=options).bytes()
        except Exception as error:  # the library's errors share no class, and their texts may quote secrets
            name = type(error).__name__
            changed = name == "PreconditionError"
            raise OSError(
                f"{shown_url(self._url)} {'was changed meanwhile' if changed else f'cannot be read: {name}'}"
            ) from error
        if len(content) != end - begin:
            raise OSError(f"{shown_url(self._url)} was changed meanwhile")
        return content

    def close(self) -> None:
        pass


def shown_url(url: str) -> str:
    """A URL without its query, which may be a signature, and without user and password."""
    scheme, mark, rest = url.partition("?")[0].partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"
