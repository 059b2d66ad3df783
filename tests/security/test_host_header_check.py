"""Host and Origin on a loopback address, against DNS rebinding and requests from pages of other sites."""

from __future__ import annotations

import pytest

from app.errors import GatherError
from app.security.host_header_check import HostHeaderCheck
from tests.for_each import for_each


@for_each(
    "host",
    ["localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:8080", "127.9.9.9", "[::1]", "[::1]:8080", "LOCALHOST.",
     "a.localhost:1", "my.service:99"],
)  # fmt: skip
def test_loopback_and_allowed_names_pass(host: str) -> None:
    guard = HostHeaderCheck("127.0.0.1", ["My.Service"])
    guard.check({b"host": host.encode()})
    guard.check({b"host": host.encode(), b"origin": b"http://" + host.encode()})


@for_each(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "[::2]", "", "a b", "localhost:x",
     "evil.example:80@localhost", "127.1", "0x7f000001", "2130706433", "[localhost]", "[127.0.0.1]", "[::1]x",
     "localhost:99999", "localhost:-1", "localhost:8_0", "localhost..", "[::1%25lo]", "http://localhost"],
)  # fmt: skip
def test_a_foreign_host_is_forbidden(host: str) -> None:
    with pytest.raises(GatherError, match="forbidden"):
        HostHeaderCheck("127.0.0.1", []).check({b"host": host.encode()})


@for_each(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "file://", "", "javascript://localhost",
     "ftp://localhost", "HTTP://localhost", "//localhost", "localhost", "http:localhost", "http:/localhost",
     "http://user@localhost", "http://localhost/", "http://localhost?x", "http://localhost#x", "http://localhost:x",
     "http://localhost:99999", "http://[localhost]", "http://localhost http://evil.example", "http://localhost..",
     " http://localhost", "chrome-extension://localhost", "http://localhost\\.evil.example", "http://localh\xf6st"],
)  # fmt: skip
def test_a_foreign_origin_is_forbidden(origin: str) -> None:
    with pytest.raises(GatherError, match="forbidden"):
        HostHeaderCheck("127.0.0.1", []).check({b"host": b"localhost", b"origin": origin.encode("latin-1")})


@pytest.mark.parametrize(
    ("host", "origin"),
    [("localhost:8080", "http://localhost:8080"), ("127.0.0.1:8080", "http://127.0.0.1:8080"),
     ("[::1]:8080", "http://[::1]:8080"), ("[0:0:0:0:0:0:0:1]:8080", "http://[::1]:8080"),
     ("LOCALHOST:8080", "http://localhost:8080"), ("localhost", "https://localhost"), ("localhost.", "http://localhost."),
     ("127.0.0.1:8080", "https://gather.example"), ("localhost:8080", "https://app.example")],
)  # fmt: skip
def test_a_page_of_the_service_may_change_something(host: str, origin: str) -> None:
    guard = HostHeaderCheck("127.0.0.1", ["Gather.example"], ["https://app.example"])
    guard.check_change({b"host": host.encode(), b"origin": origin.encode()})
    guard.check_change({b"host": host.encode()})


@pytest.mark.parametrize(
    "origin",
    ["http://localhost", "http://localhost:3000", "http://127.0.0.1:8080", "http://[::1]:8080",
     "http://x.localhost:8080", "null", "javascript://localhost:8080", "http://user@localhost:8080", ""],
)  # fmt: skip
def test_a_page_of_another_service_of_this_machine_may_not_change_anything(origin: str) -> None:
    with pytest.raises(GatherError, match="forbidden"):
        HostHeaderCheck("127.0.0.1", []).check_change({b"host": b"localhost:8080", b"origin": origin.encode()})


def test_elsewhere_any_host_passes_until_names_are_given() -> None:
    HostHeaderCheck("0.0.0.0", []).check({b"host": b"anything.example", b"origin": b"https://other.example"})
    with pytest.raises(GatherError, match="forbidden"):
        HostHeaderCheck("0.0.0.0", ["gather.example"]).check({b"host": b"anything.example"})
