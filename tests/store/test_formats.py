from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore, UnknownFormat
from app.store.catalogue import layout_migrations
from app.tensors.shape_limits import Limits
from tests.store.helpers import put, read


def opened(folder: Path) -> LocalStore:
    store = LocalStore(folder, Limits())
    store.open()
    return store


def version(folder: Path) -> int:
    found: int = json.loads((folder / "format").read_text())["format"]
    return found


def test_a_new_folder_has_the_current_format(store: LocalStore, folder: Path) -> None:
    assert version(folder) == layout_migrations.FORMAT
    assert store.names() == []


def test_an_older_store_is_upgraded_step_by_step_and_keeps_its_tensors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder)
    put(store, "x", np.arange(3))
    store.close()
    steps: list[int] = []

    def upgrade(number: int, fails: bool = False) -> None:
        assert version(folder) == number
        steps.append(number)
        (folder / f"of-{number + 1}").touch()
        if fails:
            raise OSError(28, "No space left on device")

    now = layout_migrations.FORMAT
    table = {now: lambda _: upgrade(now), now + 1: lambda _: upgrade(now + 1, fails=True)}
    monkeypatch.setattr(layout_migrations, "FORMAT", now + 2)
    monkeypatch.setattr(layout_migrations, "UPGRADES", table)
    with pytest.raises(OSError, match="No space"):
        opened(folder)
    assert steps[0] == now
    assert set(steps[1:]) == {now + 1}  # tried again with the room in reserve
    steps.clear()
    assert version(folder) == now + 1  # what was done is kept; what was cut short is done again
    table[now + 1] = lambda _: upgrade(now + 1)
    store = opened(folder)
    assert steps == [now + 1]
    assert version(folder) == now + 2
    assert read(store, "x").tolist() == [0, 1, 2]
    store.close()
    opened(folder).close()
    assert steps == [now + 1]


@pytest.mark.parametrize("text", ['{"format": 5}', '{"format": 0}', "{}", "", "[]", '{"format": "1"}'])
def test_a_folder_of_another_format_is_left_alone(folder: Path, text: str) -> None:
    opened(folder).close()
    (folder / "format").write_text(text)
    (folder / "incoming" / "file").touch()
    with pytest.raises(UnknownFormat, match=str(folder)):
        opened(folder)
    assert (folder / "incoming" / "file").exists()


def test_a_folder_with_other_things_is_not_taken_for_a_store(folder: Path) -> None:
    folder.mkdir()
    (folder / "holiday.jpg").touch()
    with pytest.raises(UnknownFormat, match="holiday"):
        opened(folder)
    assert [path.name for path in folder.iterdir()] == ["holiday.jpg"]


def test_an_empty_volume_is_taken(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)
    opened(folder).close()
