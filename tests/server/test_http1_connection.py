"""What the protocol makes of faults while a request is read."""

from __future__ import annotations

import logging

import httptools
import pytest

from app.errors import Code
from app.server.http1_connection import Http1Connection, _bad_framing


def test_a_fault_of_the_service_is_not_called_malformed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gathernd"):
        found = _bad_framing(httptools.HttpParserCallbackError("User callback error"), KeyError("what was wrong"))
    assert found.code == "internal"
    assert "what was wrong" not in found.detail
    assert "what was wrong" in caplog.text


def test_broken_framing_is_malformed() -> None:
    assert _bad_framing(httptools.HttpParserError("Invalid method"), None).code == "malformed_request"


def test_a_fault_while_a_request_is_read_is_answered_with_500_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[Code] = []
    monkeypatch.setattr(Http1Connection, "refuse", lambda _, error: refused.append(error.code))

    class Parser:
        def feed_data(self, data: bytes) -> None:
            try:
                raise KeyError("what was wrong")
            except KeyError:
                raise httptools.HttpParserCallbackError("User callback error")  # noqa: B904  (as the parser does)

    protocol = Http1Connection.__new__(Http1Connection)
    protocol.refused, protocol.at_request_start, protocol.starting = False, False, None
    protocol.parser = Parser()  # type: ignore[assignment]
    with caplog.at_level(logging.ERROR, "gathernd"):
        protocol.data_received(b"x")
    assert refused == ["internal"]
    assert "what was wrong" in caplog.text
