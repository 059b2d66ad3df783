from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.settings import Settings
from tests.server.connections import configured


@pytest.fixture(autouse=True)
def default_settings() -> Iterator[None]:
    """Connections that no server has made have what a server without any settings gives them."""
    with configured(Settings()):
        yield
