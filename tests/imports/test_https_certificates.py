"""TLS of imports: the certificate must be valid for the name in the URL, though the connection goes to an address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from app.imports import http_ranges
from app.imports.https_source import HttpsSource
from app.imports.source import SourceFailed
from app.imports.source_urls import AllowedSources, parse, parse_prefix
from tests.http.test_tls import Pair, make_pair
from tests.imports.range_server import RangeServer, range_server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A certificate for localhost and 127.0.0.1, and for no other name."""
    return make_pair(tmp_path_factory.mktemp("certificate"), "of-a-source")


@pytest.fixture
def server(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(http_ranges, "_FIRST_PAUSE_S", 0.0)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    names: list[Any] = []
    context.sni_callback = lambda socket, name, context: names.append(name)
    with range_server(context) as running:
        running.files = {"/a": b"content"}
        running.names = names  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is that of this machine."""
    import socket

    def resolve(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port or 0)))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def first_bytes(host: str, port: int) -> bytes:
    url = f"https://{host}:{port}/a"
    prefix = url if host == "127.0.0.1" else f"{url} 127.0.0.0/8"

    async def work() -> bytes:
        source = HttpsSource(parse(url), AllowedSources([parse_prefix(prefix)]))
        try:
            return await source.open()
        finally:
            await source.close()

    return asyncio.run(work())


@pytest.mark.usefixtures("resolved")
def test_the_name_of_the_url_is_told_and_verified(
    server: RangeServer, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    assert first_bytes("localhost", server.port) == b"content"
    assert server.names == ["localhost"]  # type: ignore[attr-defined]
    assert server.asked[0][2] == f"localhost:{server.port}"
    # The address that is connected to is in the certificate, the name is not.
    with pytest.raises(SourceFailed, match="certificate"):
        first_bytes("tables.internal", server.port)
    assert len(server.asked) == 1


def test_an_address_in_the_url_is_verified(server: RangeServer, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pair.certificate))
    assert first_bytes("127.0.0.1", server.port) == b"content"


@pytest.mark.usefixtures("resolved")
def test_a_certificate_that_nobody_vouches_for_is_refused(server: RangeServer) -> None:
    with pytest.raises(SourceFailed, match="certificate"):
        first_bytes("localhost", server.port)
    assert server.asked == []
