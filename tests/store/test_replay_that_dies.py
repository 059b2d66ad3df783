"""A process dies while it applies a record, and so does the next one during its start."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np

from tests.store.crash import forked
from tests.store.helpers import opened, put
from tests.store.power import Power
from tests.store.replicated import ROWS, TENSOR, WIDTH, Made, content_after, frame, values_of

RECORDS = [Made(1, 1, (1, 2), 1.0, "a"), Made(2, 1, (2, 3), 2.0, "b"), Made(3, 1, (4, 5), 3.0, "c")]
UNTIL_A_ROW = 3
"""Steps of the disk until half of the rows of a record are written."""


def dies_at(folder: Path, step: int, commit_to: int = 0) -> bool:
    """Whether a process has this step of the disk, at which it dies, while it opens the content, or commits then."""

    def work() -> None:
        power = Power(folder, folder)
        power.arm("kill", step if not commit_to else -1)
        with opened(folder).replicated.open(TENSOR) as content:
            if commit_to:
                power.arm("kill", step)
                content.commit_to(commit_to)

    return forked(work) == 137


def test_a_start_that_dies_counts_the_record_as_applied_that_was_under_way(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = opened(folder)
    put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32))
    with store.replicated.open(TENSOR) as content:
        content.set_epoch(1)
        content.append_frames(frame(RECORDS))
        content.commit_to(1)
    store.close()
    assert dies_at(folder, UNTIL_A_ROW, commit_to=2)
    for step in itertools.count(10, 2):
        image = tmp_path / str(step)
        shutil.copytree(folder, image)
        has_died = dies_at(image, step)
        again = opened(image)
        with again.replicated.open(TENSOR) as content:
            assert (content.state().applied, content.state().settled) == (2, False), f"step {step}"
            assert np.array_equal(values_of(again), content_after(RECORDS[:2])), f"step {step}"
            content.commit_to(3)
        assert np.array_equal(values_of(again), content_after(RECORDS)), f"step {step}"
        again.close()
        shutil.rmtree(image)
        if not has_died:
            assert step > 20
            break
