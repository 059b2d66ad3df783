"""HTTP/1.1 without I/O: write request headers, and parse responses from received bytes.

The parser is strict (RFC 9112): it rejects ambiguous answers, and their connection is not reused.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

import numpy as np

from ._messages import MAX_BYTES_WITHOUT_LENGTH, Answer, Headers, Request
from .errors import UnexpectedAnswer

MAX_HEADER_BYTES: Final = 64 << 10
"""Maximum size in bytes of an answer's header, and of a chunked body's trailer."""
MAX_INTERIM_ANSWERS: Final = 8
"""Maximum number of interim answers (status 1xx) before the final answer."""
MAX_ERROR_BYTES: Final = 16 << 20
"""Maximum size in bytes of the body of an error answer."""
_MAX_LINE_BYTES: Final = 4096
"""Maximum size in bytes of the line before a chunk."""
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_VALUE: Final = r"[^\x00-\x08\x0a-\x1f\x7f]*"
_HEADER: Final = re.compile(
    rf"HTTP/1\.([01]) ([1-5][0-9]{{2}})(?: {_VALUE})?((?:\r\n{_WORD}:{_VALUE})*)".encode("latin-1")
)
_NAME: Final = re.compile(_WORD)
_FIELD_VALUE: Final = re.compile(_VALUE)
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")


def request_header(request: Request[Any], base_path: str, fields: bytes, more: Headers) -> bytes:
    """Return the header of `request` as bytes, with the final empty line.

    `fields` are header lines that all requests share, and `more` are additional fields of this request.

    Raises ValueError for an invalid field name or value.
    """
    path = base_path + request.path
    first, own = _start(request.method, path, tuple(request.query.items()), tuple(request.headers.items()))
    lines = [first, fields, own]
    if more:
        lines += [field_line(name, value) for name, value in more.items()]
    if request.body or request.method in ("POST", "PUT"):
        lines.append(b"content-length: %d\r\n" % sum(map(len, request.body)))
    lines.append(b"\r\n")
    return b"".join(lines)


@lru_cache(256)
def _start(
    method: str, path: str, query: tuple[tuple[str, str], ...], headers: tuple[tuple[str, str], ...]
) -> tuple[bytes, bytes]:
    """Return the request line, and the lines of `headers`."""
    if query:
        path += "?" + urlencode(query, quote_via=quote, safe=",:-._")
    first = f"{method} {path} HTTP/1.1\r\n".encode("ascii")
    return first, b"".join([field_line(name, value) for name, value in headers])


def field_line(name: str, value: str) -> bytes:
    """Format a header line. Raises ValueError for an invalid field name or value."""
    if not (_NAME.fullmatch(name) and _FIELD_VALUE.fullmatch(value)):
        raise ValueError(f"{name!r}: {value!r} is not a valid header field")
    return f"{name}: {value}\r\n".encode("latin-1")


class AnswerParser:
    """Parses the answers to consecutive requests on a connection.

    For each request, call `start`; then write received bytes to `buffer()` and call `received` with their number, until
    it returns True. `answer` is then set, and `reusable` says whether the connection can be reused. Raises
    UnexpectedAnswer. The body is received into a new buffer of Content-Length bytes, or into the buffer that the
    request's `receive_into` returns.
    """

    def __init__(self, scratch_bytes: int) -> None:
        self._scratch = bytearray(scratch_bytes)
        self._view = memoryview(self._scratch)

    def start(self, request: Request[Any]) -> None:
        """Expect the answer to `request`."""
        self._request = request
        self._progress = request.progress if request.method == "GET" else None
        self._filled = 0  # bytes in scratch
        self._body: memoryview | None = None  # the buffer of a body with a length
        self._missing = 0  # bytes of the body, or of the chunk, that are not yet received
        self._chunked: bytearray | None = None  # the chunked body so far
        self._expected = ""  # next part of a chunked body: size, data, end, trailer
        self._interim = self._trailer_bytes = 0
        self.answer: Answer | None = None
        self.begun = False
        self.reusable = False

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes; it is never empty before the answer is complete."""
        if self._body is not None:
            return self._body[len(self._body) - self._missing :]
        return self._view[self._filled :]

    def received(self, count: int) -> bool:
        """Parse `count` bytes that were written to `buffer()`. Returns True when the answer is complete."""
        self.begun = True
        if self._body is not None:
            self._missing -= count
            return self._report_progress()
        self._filled += count
        if self._chunked is not None:
            return self._read_chunks()
        while (end := self._scratch.find(b"\r\n\r\n", 0, self._filled)) >= 0:
            header = bytes(self._view[:end])
            if end > MAX_HEADER_BYTES:
                break
            self._take(end + 4)
            if not self._is_interim(header):
                return self._begin_body()
        if self._filled > MAX_HEADER_BYTES:
            raise UnexpectedAnswer(f"the answer's header has more than {MAX_HEADER_BYTES} bytes", 0)
        self._enlarge()
        return False

    def _take(self, count: int) -> None:
        """Remove the first `count` bytes from scratch."""
        self._view[: self._filled - count] = self._view[count : self._filled]
        self._filled -= count

    def _enlarge(self) -> None:
        """Enlarge scratch if it is full."""
        if self._filled == len(self._scratch):
            larger = bytearray(2 * len(self._scratch))
            larger[: self._filled] = self._view
            self._scratch, self._view = larger, memoryview(larger)

    def _is_interim(self, header: bytes) -> bool:
        """Parse a header. Returns True for an interim answer (status 1xx), which is followed by another header."""
        found = _HEADER.fullmatch(header)
        if found is None:
            raise UnexpectedAnswer(f"the answer is not HTTP: {header[:100]!r}", 0)
        self._status = int(found[2])
        if self._status < 200:
            self._interim += 1
            if self._status == 101 or self._interim > MAX_INTERIM_ANSWERS:
                raise UnexpectedAnswer(f"an interim answer too much, of status {self._status}", self._status)
            return True
        lines = [line.partition(":") for line in found[3].decode("latin-1").split("\r\n")[1:]]
        self._headers = {name.lower(): value.strip(" \t") for name, _, value in lines}
        if len(self._headers) < len(lines):  # repeated fields are joined to one list
            values: dict[str, list[str]] = {}
            for name, _, value in lines:
                values.setdefault(name.lower(), []).append(value.strip(" \t"))
            self._headers = {name: ", ".join(found) for name, found in values.items()}
        options = self._headers.get("connection")
        closes = options is not None and "close" in [option.strip() for option in options.lower().split(",")]
        self._keep = found[1] == b"1" and not closes
        return False

    def _begin_body(self) -> bool:
        """Choose the body's buffer and framing from the header. Returns True if the answer is complete."""
        status, headers = self._status, self._headers
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None and (length is not None or coding.lower() != "chunked"):
            raise UnexpectedAnswer(f"the answer's body is framed as {coding!r}, with Content-Length {length!r}", status)
        if length is not None and not (length.isascii() and length.isdigit() and len(length) < 19):
            raise UnexpectedAnswer(f"the answer's Content-Length is {length!r}", status)
        if self._request.method == "HEAD" or status in (204, 304):
            return self._finish(memoryview(b""))
        if coding is not None:
            self._chunked, self._expected = bytearray(), "size"
            return self._read_chunks()
        if length is None:
            raise UnexpectedAnswer("the answer does not say how long its body is", status)
        size = int(length)
        if size > MAX_ERROR_BYTES and status >= 300:
            raise UnexpectedAnswer(f"an answer of status {status} with {size} bytes", status)
        receive_into = self._request.receive_into
        body = receive_into(status, headers) if receive_into is not None and status == 200 else None
        try:
            self._body = np.empty(size, np.uint8).data if body is None else body
        except MemoryError:
            raise UnexpectedAnswer(f"the answer's {size} bytes are more than there is memory", status) from None
        assert len(self._body) == size
        ready = min(self._filled, size)
        self._body[:ready] = self._view[:ready]
        self._take(ready)
        self._missing = size - ready
        return self._report_progress()

    def _report_progress(self) -> bool:
        """Report the progress of a body with a length. Returns True when it is complete."""
        assert self._body is not None
        if self._progress is not None:
            self._progress(len(self._body) - self._missing)
        return not self._missing and self._finish(self._body)

    def _finish(self, body: memoryview) -> bool:
        self.answer = Answer(self._status, self._headers, body)
        self.reusable = self._keep and not self._filled  # extra bytes must not be read as the next answer
        return True

    def _read_chunks(self) -> bool:
        """Move complete parts of a chunked body out of scratch. Returns True at its end."""
        assert self._chunked is not None
        at = 0
        while self._expected != "done":
            if self._expected == "data":
                ready = min(self._missing, self._filled - at)
                self._chunked += self._view[at : at + ready]
                at += ready
                self._missing -= ready
                if self._missing:
                    break
                self._expected = "end"
            end = self._scratch.find(b"\r\n", at, self._filled)
            limit = MAX_HEADER_BYTES if self._expected == "trailer" else _MAX_LINE_BYTES
            if (end if end >= 0 else self._filled) - at > limit:
                raise UnexpectedAnswer("a line of the answer's chunked body is too long", self._status)
            if end < 0:
                break
            self._read_line(bytes(self._view[at:end]))
            at = end + 2
        self._take(at)
        if self._progress is not None:
            self._progress(len(self._chunked))
        if self._expected == "done":
            return self._finish(memoryview(self._chunked))
        self._enlarge()
        return False

    def _read_line(self, line: bytes) -> None:
        """Parse a line of a chunked body: a chunk size, the empty line after a chunk, or a trailer line."""
        assert self._chunked is not None
        if self._expected == "size":
            found = _CHUNK_SIZE.fullmatch(line)
            if found is None:
                raise UnexpectedAnswer(f"{line[:100]!r} is not the size of a chunk", self._status)
            self._missing = int(found[1], 16)
            limit = MAX_ERROR_BYTES if self._status >= 300 else MAX_BYTES_WITHOUT_LENGTH
            if len(self._chunked) + self._missing > limit:
                raise UnexpectedAnswer(f"the answer has no announced length and more than {limit} bytes", self._status)
            self._expected = "data" if self._missing else "trailer"
        elif self._expected == "trailer":
            self._expected = "trailer" if line else "done"
            self._trailer_bytes += len(line)
            if self._trailer_bytes > MAX_HEADER_BYTES:
                raise UnexpectedAnswer(f"the answer's trailer has more than {MAX_HEADER_BYTES} bytes", self._status)
        elif line:
            raise UnexpectedAnswer("a chunk of the answer is longer than it says", self._status)
        else:
            self._expected = "size"
