"""Read sources at https:// and http://, from checked addresses only.

This module resolves the host name, checks its addresses, and sends the request to one of them, using the name in Host
and in TLS. The name therefore cannot resolve to another address between the check and the connection. This module also
follows redirects, checking each target like the first URL. Credentials, cookies, and proxies from the environment are
not used.
"""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urljoin

import httpx

from app.imports.checked_addresses import checked_addresses
from app.imports.http_ranges import FIELDS, LATER, HttpRanges, client, connection_cut, parse_retry_after
from app.imports.source import Interrupted, SourceFailed
from app.imports.source_urls import AllowedSources, BadUrl, SourceUrl, parse

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class HttpsSource(HttpRanges):
    """A file behind a URL."""

    def __init__(self, url: SourceUrl, allowed: AllowedSources) -> None:
        super().__init__()
        self._first = self._url = url
        self._allowed = allowed
        self._hosts: dict[tuple[str, str, int], _Host] = {}

    async def close(self) -> None:
        """See `Source`."""
        await super().close()
        for host in self._hosts.values():
            await host.client.aclose()

    async def _ask(self, stack: AsyncExitStack, headers: dict[str, str]) -> httpx.Response:
        url = start = self._url
        for _ in range(MAX_REDIRECTS + 1):
            answer = await self._send(stack, url, headers)
            status = answer.status_code
            if status in _REDIRECTS:
                url = self._follow_redirect(url, answer.headers.get("location", ""))
                continue
            if status in LATER:
                raise Interrupted(
                    f"the server responded with {status}", parse_retry_after(answer.headers.get("retry-after"))
                )
            if status not in (200, 206, 412, 416):
                if start != self._first:
                    self._url = self._first  # the redirect target has expired
                    raise Interrupted(f"the server responded with {status}")
                raise SourceFailed(f"the server responded with {status}")
            self._url = url
            return answer
        raise SourceFailed(f"there are more than {MAX_REDIRECTS} redirects")

    def _follow_redirect(self, url: SourceUrl, location: str) -> SourceUrl:
        try:
            found = parse(urljoin(url.target, location))
        except (BadUrl, ValueError):
            raise SourceFailed("it redirects to a URL that is not accepted") from None
        if found.scheme not in ("https", "http") or not self._allowed.find_prefixes(found):
            raise SourceFailed("it redirects to a URL outside GATHERND_IMPORT_FROM")
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
            raise connection_cut() from None
        except (httpx.InvalidURL, ValueError):  # httpx parses the field Location as well
            raise SourceFailed("the server's response could not be read") from None
        stack.push_async_callback(answer.aclose)
        answer.headers.encoding = FIELDS
        return answer


class _Host:
    """The connections to one host name, made only to checked addresses.

    Host names do not share connections. A connection is therefore never reused for another name at the same address,
    for which its certificate was not checked.
    """

    def __init__(self, url: SourceUrl) -> None:
        self.client = client(tls=url.scheme == "https")
        self._addresses: list[str] = []

    async def request(self, url: SourceUrl, headers: dict[str, str], allowed: AllowedSources) -> httpx.Request:
        """Build a request that goes to a checked address and contains the URL's host name."""
        if not self._addresses:
            found = await checked_addresses(url, allowed.find_prefixes(url))
            self._addresses = [str(address) for address in found]
        target = httpx.URL(
            scheme=url.scheme, host=self._addresses[0], port=url.port, raw_path=(url.path + url.query).encode("ascii")
        )
        extensions = {} if url.address is not None else {"sni_hostname": url.host}
        return self.client.build_request(
            "GET", target, headers=httpx.Headers({"host": url.authority, **headers}, FIELDS), extensions=extensions
        )

    def forget_address(self) -> None:
        """Drop the current address after it could not be reached. The next request uses another or resolves the name
        again.
        """
        del self._addresses[:1]


def _is_certificate_error(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
