from __future__ import annotations

from pathlib import Path

import pytest

from app.store import StoreRefused
from tests.store.helpers import opened


@pytest.mark.parametrize("text", ['{"format": 9}', '{"format": 6}', '{"format": 0}', "{}", "", "[]", '{"format": "1"}'])
def test_a_folder_of_another_format_is_left_alone(folder: Path, text: str) -> None:
    opened(folder).close()
    (folder / "format").write_text(text)
    (folder / "incoming" / "file").touch()
    with pytest.raises(StoreRefused, match=str(folder)):
        opened(folder)
    assert (folder / "incoming" / "file").exists()


def test_a_folder_with_other_things_is_not_taken_for_a_store(folder: Path) -> None:
    folder.mkdir()
    (folder / "holiday.jpg").touch()
    with pytest.raises(StoreRefused, match="holiday"):
        opened(folder)
    assert [path.name for path in folder.iterdir()] == ["holiday.jpg"]


def test_an_empty_volume_is_taken(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)
    opened(folder).close()
