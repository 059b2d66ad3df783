"""The blocking client is current: it is what the asynchronous one becomes."""

from __future__ import annotations

from deploy import sync_client


def test_the_blocking_client_is_what_make_sync_client_writes() -> None:
    assert {path.name: path.read_text() for path in sync_client.WRITTEN.glob("*.py")} == sync_client.files()
