from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.http.server import Server, serving

Start = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def start(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """Start a server: `with start("--host", "0.0.0.0") as server`."""

    def begin(*flags: str) -> AbstractContextManager[Server]:
        return serving(warmed, tmp_path_factory.mktemp("server"), *flags)

    return begin
