"""Attempts to make the service fetch what it must not: none goes through, and none connects where it may not."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from app.errors import GatherError
from app.imports import http_ranges
from app.imports.checked_addresses import is_allowed, is_public
from app.imports.file_source import FileSource
from app.imports.https_source import HttpsSource
from app.imports.source import SourceFailed
from app.imports.source_urls import AllowedSources, BadUrl, parse, parse_prefix
from app.settings import Settings
from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.http.tensors import npy
from tests.imports.range_server import RangeServer, range_server

PUBLIC = "93.184.215.14"
PREFIXES = (
    "https://allowed.example/tables/", "https://allowed.example:8443/t", "http://plain.example/tables/",
    "s3://bucket/tables/",
)  # fmt: skip
OTHER_URLS = (
    # look-alikes of what is allowed
    "https://allowed.example.evil.example/tables/a.npy", "https://evil-allowed.example/tables/a.npy",
    "https://sub.allowed.example/tables/a.npy", "https://allowed.example/tables", "https://allowed.example/tablesx/a.npy",
    "https://allowed.example/Tables/a.npy", "https://allowed.example//tables/a.npy",
    "https://allowed.example:444/tables/a.npy", "https://allowed.example:8443/tx",
    "http://allowed.example:443/tables/a.npy", "https://plain.example/tables/a.npy",
    "https://allowed.example./tables/a.npy", "https://allowed.exampl\u0435/tables/a.npy",
    "https://allowed\uff0eexample/tables/a.npy", "https://allowed%2eexample/tables/a.npy",
    "https://allowed.example%00.evil/tables/a.npy", "https://allowed.example:99999/tables/a.npy",
    "https:/allowed.example/tables/a.npy", "//allowed.example/tables/a.npy", "allowed.example/tables/a.npy",
    # users and passwords
    "https://user:pass@allowed.example/tables/a.npy", "https://allowed.example:443@evil.example/tables/a.npy",
    "https://allowed.example%40evil.example/tables/a.npy", "https://evil.example#@allowed.example/tables/a.npy",
    "https://evil.example?@allowed.example/tables/a.npy", "https://evil.example\\@allowed.example/tables/a.npy",
    "https://@allowed.example/tables/a.npy",
    # ways out of the folder: plain, escaped once or more, overlong, and by letters that look like a dot or a slash
    "https://allowed.example/tables/../secret", "https://allowed.example/tables/%2e%2e/secret",
    "https://allowed.example/tables/..%2fsecret", "https://allowed.example/tables/..%5csecret",
    "https://allowed.example/tables/..\\secret", "https://allowed.example/tables/%25252e%25252e/secret",
    "https://allowed.example/tables/..;a=b/secret", "https://allowed.example/tables/..%253Ba/secret",
    "https://allowed.example/tables/..%20/secret", "https://allowed.example/tables/%c0%ae%c0%ae/secret",
    "https://allowed.example/tables/%f0%80%80%ae./secret", "https://allowed.example/tables/%25c0%25ae/secret",
    "https://allowed.example/tables/%EF%BC%8E./secret", "https://allowed.example/tables/%e3%80%82%e3%80%82/secret",
    "https://allowed.example/tables/%e2%80%a5/secret", "https://allowed.example/tables/%2525e2%252580%2525a5/secret",
    "https://allowed.example/tables/..%ef%bc%8fsecret", "https://allowed.example/tables/%u002e%u002e/secret",
    # characters that a URL does not have
    "https://allowed.example/tables/%00", "https://allowed.example/tables/a%0d%0aHost:evil",
    "https://allowed.example/tables/a\r\nHost: evil", "https://allowed.example/tables/a b",
    "https://allowed.example/tables/%zz", "https://allowed.example/tables/%",
    "https://allowed.example/tables/a.npy#fragment", "https://allowed.example/tables/" + "a" * 5000,
    # addresses in every form
    "http://127.0.0.1/tables/a.npy", "http://2130706433/tables/a.npy", "http://0x7f.0.0.1/tables/a.npy",
    "http://0177.0.0.1/tables/a.npy", "http://127.1/tables/a.npy", "http://0/tables/a.npy",
    "http://127.0.0.1./tables/a.npy", "http://[::1]/tables/a.npy", "http://[::ffff:7f00:1]/tables/a.npy",
    "http://[64:ff9b::7f00:1]/tables/a.npy", "http://[fe80::1%25eth0]/tables/a.npy",
    "http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/computeMetadata/v1/",
    "http://localhost:8080/metrics", "http://\u2460\u2461\u2466.0.0.1/tables/a.npy",
    # other schemes
    "ftp://allowed.example/tables/a.npy", "gopher://127.0.0.1:6379/_INFO", "data:application/x-npy;base64,AAAA",
    "jar:https://allowed.example/tables/a.npy!/x", "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/tables/a.npy", "gs://bucket/tables/a.npy", "file:///etc/passwd",
    "file://allowed.example/etc/passwd", "file:///tables/\uff0e\uff0e/secret",
    # objects of S3
    "s3://other/tables/a.npy", "s3://bucket/other/a.npy", "s3://bucket/tables/../other/a.npy", "s3://bucket/tables/",
    "s3://bucket/tables/a.npy/", "s3://bucket/tables//../other/a.npy", "s3://bucket/tables/./a.npy",
    "s3://bucket/tables/%2e%2e/other/a.npy", "s3://bucket/tables/%25252E./other/a.npy",
    "s3://bucket/tables/..%2fother/a.npy", "s3://bucket/tables/%c0%ae%c0%ae/other/a.npy",
    "s3://bucket/tables/.\uff0e/other/a.npy", "s3://bucket/tables/\uff61\uff61/other/a.npy",
    "s3://bucket/tables/\u2025/other/a.npy", "s3://bucket/tables/..\uff0fother/a.npy",
    "s3://bucket/tables/..\u200b/other/a.npy", "s3://bucket/tables\uff0f../other/a.npy",
    "s3://key:secret@bucket/tables/a.npy", "s3://bucket:80/tables/a.npy",
    "s3://bucket/tables/a.npy?endpoint=http://127.0.0.1",
    "", " ", "x", "https://", "file://", "s3://",
)  # fmt: skip
NOT_PUBLIC = (
    "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "169.254.169.254",
    "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.0.1",
    "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1",
    "2001:0:7f00:1::", "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::", "3fff::1", "4000::1", "5f00::1", "fc00::1",
    "fd00:ec2::254", "fe80::1", "fec0::1", "ff02::1",
    # metadata services of clouds, in every form
    "168.63.129.16", "100.100.100.200", "192.0.0.192", "::ffff:168.63.129.16", "64:ff9b::168.63.129.16",
    "::ffff:100.100.100.200", "64:ff9b::100.100.100.200", "::ffff:192.0.0.192", "fd20:ce::254",
    # IPv4 addresses within others: ISATAP, 6to4, Teredo, NAT64, and public ones in forms that nobody routes
    "2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1", "2a00::5efe:8.8.8.8", "fe80::5efe:10.0.0.1",
    "2002:808:808::1", "2001:0:808:808::1", "64:ff9b:1::8.8.8.8", "64:ff9b::1:8.8.8.8", "::8.8.8.8",
    "::ffff:0:8.8.8.8",
)  # fmt: skip
SPECIAL = (
    # https://www.iana.org/assignments/iana-ipv4-special-registry
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32",
    "224.0.0.0/4",  # multicast has a registry of its own
    "168.63.129.16/32",  # of no registry: Azure's WireServer
    # https://www.iana.org/assignments/iana-ipv6-special-registry
    "::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32", "2001:1::1/128",
    "2001:1::2/128", "2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28",
    "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7",
    "fe80::/10",
    # https://www.iana.org/assignments/ipv6-address-space: all but global unicast, and in that the 6bone of old
    "::/96", "200::/7", "400::/6", "800::/5", "1000::/4", "3ffe::/16", "4000::/3", "6000::/3", "8000::/3", "a000::/3",
    "c000::/3", "e000::/4", "f000::/5", "f800::/6", "fe00::/9", "fec0::/10", "ff00::/8",
)  # fmt: skip
"""The blocks of addresses that are special, of which none is public to us, whether or not it is reachable."""
BESIDE = (
    "1.0.0.0", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0",
    "192.0.3.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "198.51.99.255", "203.0.114.0",
    "223.255.255.255", "2000::", "2001:200::", "2001:db7:ffff::", "2001:db9::", "2003::", "2620:4f:7fff::",
    "2620:4f:8001::", "3ffd:ffff::", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8",
)  # fmt: skip
"""Addresses beside those, which are public."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "_FIRST_PAUSE_S", 0.0)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """The addresses of names, those of each resolution in turn, the last ones then for good."""
    names: dict[str, list[list[str]]] = {}

    def resolve(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        try:
            ip_address(name)
        except ValueError:
            answers = names.get(name)
            if not answers:
                raise socket.gaierror(socket.EAI_NONAME, "unknown") from None
            found = answers.pop(0) if len(answers) > 1 else answers[0]
        else:
            found = [name]
        kinds = {4: socket.AF_INET, 6: socket.AF_INET6}
        return [(kinds[ip_address(one).version], socket.SOCK_STREAM, 6, "", (one, int(port or 0))) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hosts that requests were sent to; those that would leave the machine are refused."""
    hosts: list[str] = []
    send = httpx.AsyncClient.send

    async def noted(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        hosts.append(request.url.host)
        if request.url.host != "127.0.0.1":
            raise httpx.ConnectError("not from a test")
        return await send(self, request, **options)

    monkeypatch.setattr(httpx.AsyncClient, "send", noted)
    return hosts


def fetch(allowed: AllowedSources, text: str) -> bytes:
    """What an import of this URL reads first. Raises GatherError and SourceFailed."""
    url = allowed.check(text)

    async def work() -> bytes:
        source = FileSource(url, allowed) if url.scheme == "file" else HttpsSource(url, allowed)
        try:
            return await source.open()
        finally:
            await source.close()

    return asyncio.run(work())


def sources(*prefixes: str) -> AllowedSources:
    return AllowedSources([parse_prefix(text) for text in prefixes])


@for_each("text", OTHER_URLS)
def test_a_url_outside_of_the_prefixes_is_refused_before_anything_is_asked(
    text: str, resolved: dict[str, list[list[str]]], connected: list[str]
) -> None:
    for name in ("allowed.example", "evil.example", "localhost", "plain.example"):
        resolved[name] = [[PUBLIC]]
    with pytest.raises(GatherError) as refusal:
        sources(*PREFIXES).check(text)
    assert refusal.value.code in ("forbidden", "invalid_field")
    assert connected == []


@for_each("text", OTHER_URLS)
def test_without_prefixes_everything_is_refused(text: str) -> None:
    for url in (text, "https://allowed.example/tables/a.npy", "file:///tmp/a.npy", "s3://bucket/a.npy"):
        with pytest.raises(GatherError):
            AllowedSources(()).check(url)


@for_each("address", slow_but_for(NOT_PUBLIC[::12], NOT_PUBLIC))
def test_a_name_with_an_address_that_is_not_public_is_not_connected_to(
    address: str, resolved: dict[str, list[list[str]]], connected: list[str]
) -> None:
    assert not is_public(ip_address(address))
    for addresses in ([address], [PUBLIC, address], [address, PUBLIC]):
        resolved["allowed.example"] = [addresses]
        with pytest.raises(SourceFailed, match="not public"):
            fetch(sources(*PREFIXES), "https://allowed.example/tables/a.npy")
    assert connected == []


@for_each("block", SPECIAL)
def test_no_address_of_a_special_block_is_public_unless_an_operator_allows_it(block: str) -> None:
    network = ip_network(block)
    for address in {network[0], network[-1], network[network.num_addresses // 2]}:
        assert not is_public(address), address
        assert not is_allowed(address, [ip_network("10.9.8.0/24")])
        assert is_allowed(address, [network])


@for_each("address", NOT_PUBLIC)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@for_each("address", BESIDE)
def test_addresses_beside_special_blocks_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8"])
def test_public_addresses_are_connected_to_as_they_were_resolved(
    address: str, resolved: dict[str, list[list[str]]], connected: list[str]
) -> None:
    resolved["allowed.example"] = [[address]]
    with pytest.raises(SourceFailed, match="could not be reached"):
        fetch(sources(*PREFIXES), "https://allowed.example/tables/a.npy")
    assert set(connected) == {str(ip_address(address))}


@for_each("address", NOT_PUBLIC[::12])
def test_a_name_that_changes_its_address_after_the_check_is_not_followed(
    address: str, resolved: dict[str, list[list[str]]], connected: list[str]
) -> None:
    connected.clear()
    resolved["allowed.example"] = [[PUBLIC], [address]]
    with pytest.raises(SourceFailed):
        fetch(sources(*PREFIXES), "https://allowed.example/tables/a.npy")
    assert connected == [PUBLIC]


@pytest.fixture
def inner() -> Iterator[RangeServer]:
    with range_server() as running:
        running.files = {"/tables/a.npy": npy([1, 2]), "/secret": b"\x93NUMPY"}
        yield running


def test_a_network_of_another_prefix_does_not_count(
    inner: RangeServer, resolved: dict[str, list[list[str]]], connected: list[str]
) -> None:
    resolved["tables.internal"] = resolved["other.internal"] = [["127.0.0.1"]]
    port = inner.port
    allowed = sources(f"http://tables.internal:{port}/tables/ 127.0.0.0/8", f"http://other.internal:{port}/tables/")
    assert fetch(allowed, f"http://tables.internal:{port}/tables/a.npy") == inner.files["/tables/a.npy"]
    assert inner.asked[0][2] == f"tables.internal:{port}"
    with pytest.raises(SourceFailed, match="not public"):
        fetch(allowed, f"http://other.internal:{port}/tables/a.npy")
    assert len(inner.asked) == 1
    assert connected == ["127.0.0.1"]


TARGETS = (
    "{self}/secret", "{self}/tables/../secret", "{self}/tables/%2e%2e/secret", "../secret", "/secret",
    "//evil.example/x",
    "http://169.254.169.254/latest/meta-data/", "http://[::1]:{port}/tables/a.npy",
    "http://localhost:{port}/tables/a.npy",
    "http://127.0.0.1/tables/a.npy", "http://0x7f000001:{port}/tables/a.npy", "http://127.1:{port}/tables/a.npy",
    "https://127.0.0.1:{port}/tables/a.npy", "file:///etc/passwd", "s3://bucket/tables/a.npy", "ftp://evil.example/a",
    "gopher://127.0.0.1:{port}/", "javascript:1", "http://user:pass@127.0.0.1:{port}/tables/a.npy", "", "{self}/tables",
    "http://127.0.0.1:{port}#/tables/a.npy", "http://private.example:{port}/tables/a.npy",
)  # fmt: skip


@for_each("target", TARGETS)
@for_each("status", slow_but_for((302, 308), (301, 302, 303, 307, 308)))
def test_a_redirect_out_of_the_prefixes_is_not_followed(
    target: str, status: int, inner: RangeServer, resolved: dict[str, list[list[str]]], connected: list[str]
) -> None:
    resolved["localhost"] = resolved["private.example"] = [["127.0.0.1"]]
    location = target.format(self=inner.url, port=inner.port)
    inner.respond = lambda handler: handler.path == "/tables/start" and handler.answer(status, Location=location)
    allowed = sources(
        f"{inner.url}/tables/", f"http://private.example:{inner.port}/tables/", "s3://bucket/tables/", "file:///etc/"
    )
    with pytest.raises(SourceFailed):
        fetch(allowed, f"{inner.url}/tables/start")
    assert {path for path, _, _ in inner.asked} == {"/tables/start"}
    assert set(connected) == {"127.0.0.1"}


def test_redirects_within_the_prefixes_are_followed_a_few_times(inner: RangeServer, connected: list[str]) -> None:
    inner.respond = lambda handler: (
        handler.path in ("/tables/start", "/tables/loop")
        and handler.answer(302, Location={"/tables/start": "a.npy", "/tables/loop": "loop"}[handler.path])
    )
    allowed = sources(f"{inner.url}/tables/")
    assert fetch(allowed, f"{inner.url}/tables/start") == inner.files["/tables/a.npy"]
    with pytest.raises(SourceFailed, match="redirects"):
        fetch(allowed, f"{inner.url}/tables/loop")
    assert len(connected) == 2 + 6


def test_no_credentials_are_sent(inner: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    for name, value in (
        ("HOME", str(tmp_path)),
        ("NETRC", str(tmp_path / ".netrc")),
        ("HTTP_PROXY", "http://127.0.0.1:9"),
    ):
        monkeypatch.setenv(name, value)
    inner.fields = {"Set-Cookie": "session=secret"}
    inner.respond = lambda handler: (
        handler.path == "/tables/start" and handler.answer(302, Location="a.npy", Set_Cookie="a=b; Path=/")
    )
    fetch(sources(f"{inner.url}/tables/"), f"{inner.url}/tables/start")
    for fields in inner.headers:
        assert not {"authorization", "cookie", "referer", "proxy-authorization"} & fields.keys()


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    (tmp_path / "tables" / "below").mkdir(parents=True)
    (tmp_path / "tables-of-others").mkdir()
    for path in ("tables/a.npy", "tables/below/b.npy", "tables-of-others/c.npy", "secret"):
        (tmp_path / path).write_bytes(npy([1, 2]))
    tables = tmp_path / "tables"
    (tables / "inside").symlink_to("below/b.npy")
    (tables / "outside").symlink_to("../secret")
    (tables / "absolute").symlink_to("/etc/passwd")
    (tables / "folder").symlink_to("..")
    (tables / "chain").symlink_to("outside")
    (tables / "self").symlink_to("self")
    (tables / "zero").symlink_to("/dev/zero")
    (tables / "environ").symlink_to("/proc/self/environ")
    os.mkfifo(tables / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(tables)  # a path of a socket is short
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
    return tmp_path


@for_each(
    "path",
    [
        "tables/outside", "tables/absolute", "tables/folder/secret", "tables/chain", "tables/self", "tables/zero",
        "tables/environ", "tables/fifo", "tables/socket", "tables/below", "tables/missing", "tables/a.npy/x",
        "tables/../secret", "tables/%2e%2e/secret", "tables/..%2fsecret", "tables//a.npy", "tables-of-others/c.npy",
        "secret", "tables", "tables/a.npy%00", "tables/a.npy?x", "tables/a.npy#x", "tables/%ff", "tables/%7f",
        "TABLES/a.npy", "tables/./a.npy", "tables/a.npy/", "tables/",
    ],
)  # fmt: skip
def test_a_file_out_of_the_folder_or_no_file_at_all_is_not_read(path: str, folders: Path) -> None:
    with pytest.raises((GatherError, SourceFailed)):
        fetch(sources(f"file://{folders}/tables"), f"file://{folders}/{path}")


@pytest.mark.parametrize("path", ["a.npy", "below/b.npy", "inside", "%61.npy"])
def test_files_of_the_folder_are_read_through_links_that_stay_there(path: str, folders: Path) -> None:
    assert fetch(sources(f"file://{folders}/tables"), f"file://localhost{folders}/tables/{path}") == npy([1, 2])


def test_a_link_to_the_allowed_folder_itself_is_the_operators(folders: Path) -> None:
    (folders / "link").symlink_to("tables")
    assert fetch(sources(f"file://{folders}/link/"), f"file://{folders}/link/a.npy") == npy([1, 2])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("HTTPS://Allowed.EXAMPLE:443/tables/%7ea%2Bb?x=secret", "https://allowed.example/tables/~a%2Bb"),
        ("http://[2001:DB8:0::1]:8080/x", "http://[2001:db8::1]:8080/x"),
        ("https://allowed.example", "https://allowed.example/"),
        ("file://localhost/data/a%20b.npy", "file:///data/a b.npy"),
        ("s3://bucket/a b/c.npy", "s3://bucket/a b/c.npy"),
        ("s3://bucket/\u8868\uff0f\uff0e\u2026/..a/a..", "s3://bucket/\u8868\uff0f\uff0e\u2026/..a/a.."),
        ("https://a.example/%E2%80%A6/%E8%A1%A8", "https://a.example/%E2%80%A6/%E8%A1%A8"),
    ],
)
def test_what_is_the_same_is_read_as_the_same_and_shown_without_its_query(text: str, shown: str) -> None:
    assert parse(text).shown == shown


@pytest.mark.parametrize(
    "text",
    ["", "https://a.example/?q", "https://a.example/ 10.0.0.1/8", "https://a.example/ x", "s3://bucket/ 10.0.0.0/8",
     "file:///", "file:///x 10.0.0.0/8", "ftp://a.example/", "*", "https://*.example/"],
)  # fmt: skip
def test_prefixes_that_are_none(text: str) -> None:
    with pytest.raises(BadUrl):
        parse_prefix(text)
    if text:
        with pytest.raises(ValidationError, match="is not a URL prefix"):
            Settings(import_from=f"https://allowed.example/,{text}")


@pytest.mark.parametrize("text", ["s3.example", "ftp://s3.example", "http://user:pass@s3.example", "http://s3/?x", ""])
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ValidationError, match="must be a URL"):
        Settings(import_s3_endpoint=text)
