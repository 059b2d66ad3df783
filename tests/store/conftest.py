from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store import LocalStore
from app.tensors.shape_limits import Limits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> Iterator[LocalStore]:
    """An open store of its own."""
    made = LocalStore(folder, Limits())
    made.open()
    yield made
    made.close()


@pytest.fixture
def other(store: LocalStore, folder: Path) -> Iterator[LocalStore]:
    """The same store as another worker of the same process group has it."""
    made = LocalStore(folder, Limits(), token=store.group.token)
    made.open()
    yield made
    made.close()
