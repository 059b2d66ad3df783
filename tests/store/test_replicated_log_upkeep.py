"""What deaths, checkpoints and replicas that join do to the log of a replicated content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.store import LocalStore
from app.store.scatters.writable_tensor import WritableTensor
from tests.store.helpers import opened, put, read
from tests.store.replicated import ROWS, TENSOR, WIDTH, Made, frame

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
