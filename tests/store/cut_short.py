"""Ending a process at each step that the opening of a store takes on the disk, as `tests.store.power` says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.store import LocalStore
from tests.store.power import LOSSES, Power

MODES: Final = ("kill", "half", *LOSSES)
_MOST: Final = 500


def die_at_each_step(
    folder: Path, room: Path, mode: str, open_store: Callable[[Path], LocalStore], check: Callable[[LocalStore], None],
    *, stride: int = 1, first: int = 1,
) -> int:  # fmt: skip
    """Open copies of a store, each by a process that ends at another step, and check what is found when it is opened
    again; how many deaths there were. `room` is a folder for the copies.
    """
    for deaths, last in enumerate(range(first, _MOST, stride)):
        copy, image = room / "copy", room / "image"
        shutil.copytree(folder, copy)
        child = os.fork()
        if child == 0:
            try:
                Power(copy, image).arm(mode, last)
                open_store(copy).close()
            except BaseException:  # noqa: BLE001  (told by the status)
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 137), f"step {last}"
        store = open_store(image if status and mode in LOSSES else copy)
        try:
            check(store)
        finally:
            store.close()
        for used in (copy, image):
            shutil.rmtree(used, ignore_errors=True)
        if status == 0:
            return deaths
    raise AssertionError(f"it has more than {_MOST} steps")
