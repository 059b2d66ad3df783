"""Imports during which the disk fills up, at each of their steps."""

from __future__ import annotations

import hashlib
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from app.errors import GatherError
from app.formats import npy as npy_format
from app.imports.import_steps import ImportSpec, ImportSteps
from app.imports.source import Checksum, SourceFailed
from app.imports.source_urls import parse
from app.imports.tensor_in_file import Found
from app.store import LocalStore
from app.store.maintenance.check_store import check as check_store
from app.store.tensor_store_interface import TensorStore
from tests.http.tensors import npy
from tests.store.crash import carry_out_import
from tests.store.filler import Filler
from tests.store.helpers import ALWAYS, opened, read

SOURCE = "https://source.example/t.npy"


class FillsUp:
    """A store for an import, during which the disk fills up at one moment."""

    def __init__(self, store: LocalStore, filler: Filler, moment: str) -> None:
        self.store, self.filler, self.moment = store, filler, moment
        self.upload = store.upload

    def reached(self, moment: str) -> None:
        if moment == self.moment:
            self.filler.fill()

    def put(self, *arguments: Any) -> Any:
        self.reached("before the commit")
        made = self.store.put(*arguments)
        self.reached("after the commit")
        return made


MOMENTS = ("entered", "in the middle", "all written", "before the commit", "after the commit")


def import_at_full_disk(tensors: FillsUp, content: np.ndarray, checksum: bytes) -> ImportSteps:
    """An import that meets a full disk, carried out as `ImportJobs` does."""
    raw = npy(content)
    start = npy_format.read_start(raw)
    assert start is not None
    found = Found(start, start.offset, len(raw), raw[: start.offset])
    asked = ImportSpec("made", parse(SOURCE), None, ALWAYS)
    steps = ImportSteps(asked, found, Checksum("sha256", checksum), len(raw))
    steps.enter(tensors.store)
    tensors.reached("entered")
    try:
        for at in range(start.offset, len(raw), 100_000):
            steps.take(raw[at : at + 100_000])
            tensors.reached("in the middle")
            with suppress(OSError):
                steps.tell(steps.done)
        tensors.reached("all written")
        steps.commit(cast(TensorStore, tensors))
    except SourceFailed as problem:
        steps.fail(problem.as_error(SOURCE))
    except GatherError as problem:
        steps.fail(problem)
    return steps


def import_on_full_disk(place: Path, filler: Filler) -> None:
    """Imports during which the disk fills up: each is made whole or not at all, and its record says which and why."""
    store = opened(place)
    content = np.arange(100_000)
    right = hashlib.sha256(npy(content)).digest()
    outcomes: set[Any] = set()
    for moment in MOMENTS:
        for checksum in (right, bytes(32)):
            steps = import_at_full_disk(FillsUp(store, filler, moment), content, checksum)
            record = store.imports.find(steps.record.id)
            assert record is not None
            assert record == steps.record, moment
            assert ("made" in store.names()) == (record.state == "done")
            if record.error is None:
                assert (record.state, checksum) == ("done", right)
            else:
                assert record.state == "failed"
                assert record.error.code == "insufficient_storage" or (
                    checksum != right and "do not match" in record.error.detail
                ), (moment, record)
            if record.state == "done":
                assert read(store, "made").tolist() == content.tolist()
            if moment in ("all written", "after the commit"):
                outcomes.add((moment, record.state, record.error and record.error.code))
            filler.empty()
            if record.state == "done":
                store.delete("made")
            assert list(check_store(place / "store")) == []
            assert list(Path(place, "store", "incoming").iterdir()) == []
    assert ("all written", "failed", "import_failed") in outcomes
    assert ("after the commit", "done", None) in outcomes
    # What a process left that was killed on a full disk is ended there, by the next.
    if os.fork() == 0:
        filler_of_child = FillsUp(opened(place), filler, "in the middle")
        filler_of_child.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        import_at_full_disk(filler_of_child, content, right)
    os.wait()
    states = [record.state for record in store.imports.page(1000, None)[0]]
    assert states[-1] == "failed"
    assert list(store.folder.glob("imports/*.run")) == []
    store.close()
    filler.empty()
    store = opened(place)
    assert [record.state for record in store.imports.page(1000, None)[0]] == states
    carry_out_import(store, "import", "made", (1, content))
    assert read(store, "made").tolist() == content.tolist()
    store.close()
