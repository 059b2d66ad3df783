"""What deaths, checkpoints and replicas that join do to the log of a replicated content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore
from app.store.files import disk_writes
from app.store.scatters.writable_tensor import WritableTensor
from tests.store.helpers import opened, put, read
from tests.store.replicated import ROWS, TENSOR, WIDTH, Made, frame, read_frames, told

ONE, TWO, THREE = (Made(number, 1, (number,), 4.0 + number, f"k{number}") for number in (1, 2, 3))
ONES = np.ones((1, WIDTH), np.float32)


def replicated(store: LocalStore, *records: Made) -> None:
    put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
    with store.replicated.open(TENSOR) as content:
        content.set_epoch(1)
        for record in records:
            content.append_frames(frame([record]))


def dying(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_start_that_dies_while_it_finishes_a_change_leaves_it_to_the_next_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(folder)
    replicated(store, ONE)
    with monkeypatch.context() as patched:
        patched.setattr(WritableTensor, "_write_rows", dying)
        with pytest.raises(KeyboardInterrupt), store.replicated.open(TENSOR) as content:
            content.commit_to(1)
        store.close()
        with pytest.raises(KeyboardInterrupt):
            opened(folder)
    store = opened(folder)
    with store.replicated.open(TENSOR) as content:
        assert content.state().applied == 1
    assert read(store, TENSOR)[1, 0] == ONE.value
    store.close()


def test_a_tail_is_dropped_alone_though_the_log_was_being_set_aside(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicated(store, ONE, TWO, THREE)
    with store.replicated.open(TENSOR) as content:
        content.commit_to(1)
    real = disk_writes.rename

    def refused(source: Path, target: Path) -> None:
        if source.parent.name == "logs":
            raise OSError
        real(source, target)

    with monkeypatch.context() as patched:  # the log has two names then, as after a death at this moment
        patched.setattr(disk_writes, "rename", refused)
        store._checkpoints.checkpoint_bytes = 300
        with store.replicated.open(TENSOR):
            pass
    store._checkpoints.checkpoint_bytes = 1 << 26
    with store.replicated.open(TENSOR) as content:
        content.drop_tail(2)
        assert (content.state().applied, content.state().last) == (1, 2)
        frames = content.frames_after(0)
        assert frames is not None
        assert read_frames(frames) == told([ONE, TWO])
