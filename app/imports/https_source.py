"""Sources at https:// and http://: by ranges, of one content, from addresses that were checked.

The name of a host is resolved here, its addresses are checked, and the request goes to one of them, with the name in
Host and in TLS: so the host cannot come to mean another address between the check and the connection. Redirects are
followed here as well, each checked as the first URL was. No credentials, cookies or proxies of the environment are
used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import ssl
from contextlib import AsyncExitStack
from http.cookiejar import CookieJar, DefaultCookiePolicy
from time import monotonic
from typing import Final
from urllib.parse import urljoin

import httpx

from app import __version__
from app.imports.checked_addresses import checked_addresses
from app.imports.retries import FIRST_ATTEMPTS, Attempts, with_retries
from app.imports.source_errors import CHANGED, Interrupted, SourceFailed
from app.imports.source_interface import HEAD_BYTES, Checksum
from app.imports.source_urls import AllowedSources, BadUrl, SourceUrl, parse

MAX_REDIRECTS: Final = 5
_TIMEOUT: Final = httpx.Timeout(30, connect=10)
_SLOWEST: Final = 1 << 14
"""Bytes a second that a range must come with on average, in its first minute none."""
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")
_EMPTY_RANGE: Final = re.compile(r"bytes \*/0")
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_LATER: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
_SHA256: Final = re.compile(r"(?:^|,)\s*sha-256=(?::([A-Za-z0-9+/]{43}=):|([A-Za-z0-9+/]{43}=))", re.IGNORECASE)


class HttpsSource:
    """A file behind a URL."""

    def __init__(self, url: SourceUrl, allowed: AllowedSources) -> None:
        self.size = 0
        self.checksum: Checksum | None = None
        self._first = self._url = url
        self._allowed = allowed
        self._hosts: dict[tuple[str, str, int], _Host] = {}
        self._validators: dict[str, str] | None = None

    async def open(self) -> bytes:
        """See `Source`."""
        return await with_retries(self._open, FIRST_ATTEMPTS)

    async def _open(self) -> bytes:
        async with AsyncExitStack() as stack:
            answer = await self._ask(stack, 0, HEAD_BYTES)
            if answer.status_code == 416 and _EMPTY_RANGE.fullmatch(answer.headers.get("content-range", "")):
                return b""
            if answer.status_code == 200:
                raise SourceFailed("the server answers no ranges (206)", "Download the file, and upload it with PUT.")
            begin, end, self.size = _range_of(answer)
            if (begin, end) != (0, min(HEAD_BYTES, self.size)):
                raise SourceFailed("the server answers another range than it was asked for")
            self._validators = _validators_of(answer)
            self.checksum = _checksum_of(answer)
            head = bytearray()
            try:
                async for piece in answer.aiter_raw():
                    head += piece
                    if len(head) > end:
                        raise SourceFailed("the server sends more than it announced")
            except httpx.TransportError:
                raise _cut() from None
            if len(head) < end:
                raise _cut()
            return bytes(head)

    async def read(self, begin: int, end: int) -> bytearray:
        """See `Source`."""
        content = bytearray(end - begin)
        attempts = Attempts()
        deadline = monotonic() + 60 + len(content) / _SLOWEST
        done = 0
        while done < len(content):
            came = done
            try:
                async with AsyncExitStack() as stack:
                    answer = await self._ask(stack, begin + done, end)
                    self._check(answer, begin + done, end)
                    async for piece in answer.aiter_raw():
                        if done + len(piece) > len(content):
                            raise SourceFailed("the server sends more than it announced")
                        content[done : done + len(piece)] = piece
                        done += len(piece)
                        if monotonic() > deadline:
                            raise SourceFailed("the server sends too slowly")
                if done < len(content):
                    raise _cut()
                if came == 0:
                    _check_digest(answer, content)
            except (Interrupted, httpx.TransportError) as failure:
                if done > came:
                    attempts.progress()
                if monotonic() > deadline:
                    raise SourceFailed("the server sends too slowly") from None
                await attempts.after(failure if isinstance(failure, Interrupted) else _cut())
        return content

    async def close(self) -> None:
        """See `Source`."""
        for host in self._hosts.values():
            await host.client.aclose()

    def _check(self, answer: httpx.Response, begin: int, end: int) -> None:
        """Raises SourceFailed unless an answer is of the range and the content that were asked for."""
        if answer.status_code in (200, 412, 416):
            raise SourceFailed(CHANGED)
        if _range_of(answer) != (begin, end, self.size) or _validators_of(answer) != self._validators:
            raise SourceFailed(CHANGED)

    async def _ask(self, stack: AsyncExitStack, begin: int, end: int) -> httpx.Response:
        """The answer to a request for a range, whose body is to be read yet. Raises Interrupted and SourceFailed."""
        headers = {"range": f"bytes={begin}-{end - 1}"}
        condition = (self._validators or {}).get("etag")
        if condition is not None:
            headers["if-range"] = condition
        url = start = self._url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(stack, url, headers)
            status = answer.status_code
            if status in _REDIRECTS:
                url = self._redirected(url, answer.headers.get("location", ""))
                continue
            if status in _LATER:
                raise Interrupted(f"the server answered {status}", _seconds(answer.headers.get("retry-after")))
            if status not in (200, 206, 412, 416):
                if start != self._first:
                    self._url = self._first  # what a redirect led to has expired
                    raise Interrupted(f"the server answered {status}")
                raise SourceFailed(f"the server answered {status}")
            if answer.headers.get("content-encoding", "identity").lower() != "identity":
                raise SourceFailed("the server sends it compressed")
            self._url = url
            return answer
        raise SourceFailed(f"there are more than {MAX_REDIRECTS} redirects")

    def _redirected(self, url: SourceUrl, location: str) -> SourceUrl:
        try:
            found = parse(urljoin(url.target, location))
        except (BadUrl, ValueError):
            raise SourceFailed("it redirects to a URL that is not read here") from None
        if found.scheme not in ("https", "http") or not self._allowed.covering(found):
            raise SourceFailed("it redirects to a URL outside of GATHERND_IMPORT_FROM")
        if url.scheme == "https" and found.scheme == "http":
            raise SourceFailed("it redirects from https to http")
        return found

    async def _send(self, stack: AsyncExitStack, url: SourceUrl, headers: dict[str, str]) -> httpx.Response:
        key = url.scheme, url.host, url.port
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = _Host(url)
        request = await host.request(url, headers, self._allowed)
        try:
            answer = await host.client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            host.forget_address()
            if _is_certificate_error(error):
                raise SourceFailed("the certificate of its host is not valid") from None
            raise Interrupted(f"the host {url.host} could not be reached") from None
        except httpx.TransportError:
            raise _cut() from None
        except (httpx.InvalidURL, ValueError):  # httpx reads the field Location, too
            raise SourceFailed("the server's answer could not be read") from None
        stack.push_async_callback(answer.aclose)
        return answer


class _Host:
    """Connections to one host, all of them to addresses that were checked.

    Each host has connections of its own: one that was made, and whose certificate was checked, for another name at the
    same address is not used.
    """

    def __init__(self, url: SourceUrl) -> None:
        self.client = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            timeout=_TIMEOUT,
            verify=httpx.create_ssl_context() if url.scheme == "https" else False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"user-agent": f"gathernd/{__version__}", "accept": "*/*", "accept-encoding": "identity"},
        )
        self._addresses: list[str] = []

    async def request(self, url: SourceUrl, headers: dict[str, str], allowed: AllowedSources) -> httpx.Request:
        """A request to a checked address, in the name of the URL's host."""
        if not self._addresses:
            found = await checked_addresses(url, allowed.covering(url))
            self._addresses = [str(address) for address in found]
        target = httpx.URL(
            scheme=url.scheme, host=self._addresses[0], port=url.port, raw_path=(url.path + url.query).encode("ascii")
        )
        extensions = {} if url.address is not None else {"sni_hostname": url.host}
        return self.client.build_request(
            "GET", target, headers={"host": url.authority, **headers}, extensions=extensions
        )

    def forget_address(self) -> None:
        """The first address could not be reached: try the next one, or resolve the name again."""
        del self._addresses[:1]


def _cut() -> Interrupted:
    return Interrupted("the connection was cut")


def _is_certificate_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _range_of(answer: httpx.Response) -> tuple[int, int, int]:
    """Where the range of an answer begins and ends, and the size of the whole. Raises SourceFailed."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
    if match is None or not int(match[1]) <= int(match[2]) < int(match[3]):
        raise SourceFailed("the server answers a range without saying which")
    return int(match[1]), int(match[2]) + 1, int(match[3])


def _validators_of(answer: httpx.Response) -> dict[str, str]:
    """What tells contents apart: a strong ETag, else the time of the last change."""
    etag = answer.headers.get("etag")
    if etag is not None:
        return {} if etag.startswith("W/") else {"etag": etag}
    changed = answer.headers.get("last-modified")
    return {} if changed is None else {"last-modified": changed}


def _checksum_of(answer: httpx.Response) -> Checksum | None:
    """The checksum of the whole file that an answer gives: RFC 9530, the Digest before it, or that of S3."""
    for name in ("repr-digest", "digest"):
        match = _SHA256.search(answer.headers.get(name, ""))
        if match is not None:
            return Checksum("sha256", base64.b64decode(match[1] or match[2]))
    return amazon_checksum(answer.headers)


def amazon_checksum(headers: httpx.Headers) -> Checksum | None:
    """The checksum of a whole object in the header fields of S3."""
    given = headers.get("x-amz-checksum-sha256", "")
    if headers.get("x-amz-checksum-type", "FULL_OBJECT") != "FULL_OBJECT" or "-" in given:
        return None
    try:
        digest = base64.b64decode(given, validate=True)
    except binascii.Error:
        return None
    return Checksum("sha256", digest) if len(digest) == 32 else None


def _check_digest(answer: httpx.Response, content: bytearray) -> None:
    """Compare what came in one answer with its Content-Digest. Raises Interrupted."""
    match = _SHA256.search(answer.headers.get("content-digest", ""))
    if match is not None and hashlib.sha256(content).digest() != base64.b64decode(match[1] or match[2]):
        raise SourceFailed("what came is not what Content-Digest speaks of")


def _seconds(field: str | None) -> float:
    return float(field) if field is not None and re.fullmatch(r"[0-9]{1,4}", field) else 0.0
