from __future__ import annotations

import pytest

from app.server.http1_connection import Http1Connection
from app.settings import Settings


@pytest.fixture(autouse=True)
def default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that no server has made have the settings that a server without any gives them."""
    monkeypatch.setattr(Http1Connection, "settings", Settings(), raising=False)
