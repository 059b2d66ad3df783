"""What a client is told: address, key, headers, proxies, certificates; and the names that clients had before."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import gathernd
from gathernd import errors
from gathernd._connection_settings import connection_settings, parse_url
from gathernd._httpx_transport import HttpxTransport
from gathernd._socket_transport import SocketTransport
from tests.client.test_retries import DATA, INDICES, Scripted, done, pauses, scripted
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.test_tls import Pair, pair

__all__ = ["pair", "pauses", "scripted"]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@for_each(
    "url",
    [
        "", "127.0.0.1", "127.0.0.1:8080", "localhost:8080", "ftp://host", "http://", "http:///gathernd", "//host",
        "http://user:password@host", "http://host?x=1", "http://host#x", "http://ho st", "http://host:port",
        "http://ho\rst", "unix:", "unix:a.sock", "unix://host/a.sock", "unix:/a.sock?x=1",
    ],
)  # fmt: skip
def test_what_is_no_url_of_a_service_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|port|host"):
        gathernd.Client(url)


@for_each(
    ("url", "host", "port", "base_path", "host_field"),
    [
        ("http://host", "host", 80, "", "host"),
        ("https://host/", "host", 443, "", "host"),
        ("HTTP://Host:8080/a b/", "host", 8080, "/a%20b", "host:8080"),
        ("http://[::1]:80", "::1", 80, "", "[::1]"),
        ("http://bücher.example:1", "xn--bcher-kva.example", 1, "", "xn--bcher-kva.example:1"),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, base_path: str, host_field: str) -> None:
    found = parse_url(url)
    assert (found.host, found.port, found.base_path, found.host_field) == (host, port, base_path, host_field)


def test_url_and_key_are_those_of_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(url: str | None = None, key: str | None = None) -> tuple[str, str | None]:
        settings = connection_settings(url, key, 1.0, 0, None, True, None, None)
        return settings.address.url, settings.headers.get("authorization")

    monkeypatch.delenv("GATHERND_URL", raising=False)
    monkeypatch.delenv("GATHERND_API_KEY", raising=False)
    assert found() == ("http://127.0.0.1:8080", None)
    monkeypatch.setenv("GATHERND_URL", "http://there:1")
    monkeypatch.setenv("GATHERND_API_KEY", "k")
    assert found() == ("http://there:1", "Bearer k")
    assert found("http://here", "mine") == ("http://here", "Bearer mine")
    monkeypatch.setenv("GATHERND_URL", "")
    assert found()[0] == "http://127.0.0.1:8080"


def test_headers_are_sent_for_all_calls_and_for_one(scripted: Scripted) -> None:
    client, script = scripted(done(), done(), headers={"X-Team": "search"})
    client.gathernd(DATA, INDICES, headers={"X-Request-ID": "r-7"})
    client.gathernd(DATA, INDICES)
    first, second = (request.headers for request in script.requests)
    assert (first["x-team"], first["x-request-id"]) == ("search", "r-7")
    assert second["x-team"] == "search"
    assert "x-request-id" not in second
    for headers in ({"Content-Length": "3"}, {"host": "other"}, {"Accept": "text/html"}):
        with pytest.raises(ValueError, match="client itself"):
            client.gathernd(DATA, INDICES, headers=headers)
    with pytest.raises(ValueError, match="header field"):
        scripted(headers={"x": "a\r\nb: c"})


def test_a_calls_timeout_is_told_to_the_service(scripted: Scripted, pauses: list[float]) -> None:
    client, script = scripted(httpx.ConnectError("no"), done(), done())
    client.gathernd(DATA, INDICES, timeout=250)
    client.gathernd(DATA, INDICES)
    first, second, third = (request.headers.get("x-gathernd-timeout") for request in script.requests)
    assert 100 < float(second) <= float(first) <= 250
    assert third is None
    for wrong in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            client.gathernd(DATA, INDICES, timeout=wrong)


def test_a_deadline_that_the_service_cannot_keep_is_its_own_error(kind: Any, server: Server) -> None:
    with kind(server.url, retries=0) as client, pytest.raises((errors.DeadlineExceeded, errors.Timeout)):
        client.gathernd(np.zeros(4 << 20), np.zeros((1, 1), np.int64), timeout=1e-4)


PROXY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("url", "variables", "direct"),
    [
        ("http://127.0.0.1", {}, True),
        ("http://127.0.0.1", {"http_proxy": PROXY}, False),
        ("http://127.0.0.1", {"all_proxy": PROXY}, False),
        ("http://127.0.0.1", {"https_proxy": PROXY}, True),
        ("http://127.0.0.1", {"http_proxy": PROXY, "no_proxy": "127.0.0.1"}, True),
        ("unix:/run/a.sock", {"http_proxy": PROXY}, True),
    ],
)
def test_a_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, url: str, variables: dict[str, str], direct: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with gathernd.Client(url, retries=0) as client:
        assert isinstance(client._transport, SocketTransport if direct else HttpxTransport)


def test_the_old_names_are_the_new_ones_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"gathernd\.GatherND is now gathernd\.Client"):
        assert gathernd.GatherND is gathernd.Client
    with pytest.warns(DeprecationWarning, match=r"gathernd\.AsyncGatherND is now gathernd\.AsyncClient"):
        assert gathernd.AsyncGatherND is gathernd.AsyncClient
    with pytest.raises(AttributeError, match="Gatherer"):
        gathernd.Gatherer  # noqa: B018


@pytest.fixture(scope="module")
def secure(start: Start, pair: Pair) -> Iterator[Server]:
    """A server with a certificate that no authority has signed."""
    with start(*pair.flags(), tls=pair.trusting()) as server:
        yield server


def test_https_trusts_whom_it_is_told_to(kind: Any, secure: Server, pair: Pair) -> None:
    large = np.random.default_rng(3).random((300, 1000))
    for verify in (str(pair.certificate), pair.certificate, pair.trusting(), False):
        with kind(secure.url, verify=verify) as client:
            assert client.gathernd(large, np.arange(300)[:, None]).tobytes() == large.tobytes()
    with kind(secure.url.replace("https", "http"), retries=0) as client, pytest.raises(errors.TransportError):
        client.metadata("a")


def test_a_certificate_that_is_not_trusted_is_told_at_once(
    kind: Any, secure: Server, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = secure.url
    refused = pytest.raises(errors.UntrustedCertificate, match=r"not trusted: self.signed certificate; .*GATHERND_CA")
    with kind(url, retries=50) as client, refused:
        client.metadata("items")
    with kind(url) as client, refused:
        client.ready(wait=3600)
    with kind(url, transport=over_httpx(kind)) as client, refused:
        client.ready(wait=3600)
    monkeypatch.setenv("GATHERND_CA", str(pair.certificate))
    with kind(url) as client:
        assert client.ready(wait=60)
    with kind(url, verify=True) as client, refused:
        client.ready(wait=3600)


def over_httpx(kind: Any) -> Any:
    """A transport of httpx that trusts public authorities, for a client of this kind."""
    return httpx.HTTPTransport() if kind is gathernd.Client else httpx.AsyncHTTPTransport()


def test_a_file_without_authorities_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_bytes(b"nothing")
    for name, problem in (("empty.pem", ValueError), ("missing.pem", FileNotFoundError)):
        with pytest.raises(problem, match=name):
            gathernd.Client("https://127.0.0.1", verify=tmp_path / name)


@pytest.mark.slow
def test_a_client_with_a_certificate_of_its_own_is_let_in(kind: Any, start: Start, pair: Pair) -> None:
    asks = (*pair.flags(), "--tls-client-ca", str(pair.certificate))
    trusting = pair.trusting()
    trusting.load_cert_chain(pair.certificate, pair.key)
    with start(*asks, tls=trusting) as server:
        with kind(server.url, verify=pair.certificate, cert=(str(pair.certificate), str(pair.key))) as client:
            assert client.gathernd([1.0, 2.0], [[1]]).tolist() == [2.0]
        with kind(server.url, verify=pair.certificate, retries=0) as client, pytest.raises(errors.TransportError):
            client.gathernd([1.0, 2.0], [[1]])


def test_tls_is_verified_unless_that_is_switched_off() -> None:
    def context(verify: Any) -> ssl.SSLContext:
        return connection_settings("https://127.0.0.1", None, 1.0, 0, None, verify, None, None).tls_context()

    assert (context(True).verify_mode, context(True).check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context(False).verify_mode == ssl.CERT_NONE
    with pytest.raises(ValueError, match="load_cert_chain"):
        gathernd.Client("https://127.0.0.1", verify=ssl.create_default_context(), cert="mine.pem")
    with pytest.raises(FileNotFoundError):
        gathernd.Client("https://127.0.0.1", verify="nothing.pem")
