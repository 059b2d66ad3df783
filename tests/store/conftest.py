from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store import LocalStore
from tests.store.helpers import opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[LocalStore]:
    """An open store of its own."""
    made = opened(folder)
    yield made
    made.close()


@pytest.fixture
def other(store: LocalStore, folder: Path) -> Iterator[LocalStore]:
    """The same store as another worker of the same process group has it."""
    made = opened(folder, token=store.group.token)
    yield made
    made.close()
