"""Imports give back what they hold, whatever their source does."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.imports.file_source import FileSource
from app.imports.import_jobs import ImportJobs
from app.imports.import_steps import ImportSpec, ImportSteps
from app.imports.source_urls import AllowedSources, parse, parse_prefix
from app.memory.budget import Budget
from app.store import Conditions, LocalStore
from app.store.import_records import ImportRecord
from app.tensors.shape_limits import Limits
from tests.http.tensors import npy
from tests.store.helpers import read


def test_a_source_that_cannot_be_closed_keeps_no_import_from_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FileSource.close

    async def close(self: FileSource) -> None:
        await real(self)
        raise RuntimeError("closed already")

    monkeypatch.setattr(FileSource, "close", close)
    (tmp_path / "a.npy").write_bytes(npy(np.arange(5)))
    store = LocalStore(tmp_path / "store", Limits())
    store.open()
    budget = Budget(1 << 30)
    jobs = ImportJobs(
        store, AllowedSources([parse_prefix(f"file://{tmp_path}")]), budget,
        max_bytes=1 << 20, at_once=1, count=lambda state, size: None,
    )  # fmt: skip

    def begin(name: str) -> ImportRecord:
        return asyncio.run(jobs.begin(ImportSpec("t", parse(f"file://{tmp_path}/{name}"), None, Conditions())))

    for version in (1, 2):
        with pytest.raises(GatherError, match="import_failed"):
            begin("missing.npy")
        number = begin("a.npy").id
        end = time.monotonic() + 60
        while (found := store.imports.find(number)) is None or found.state == "running":
            assert time.monotonic() < end
            time.sleep(0.01)
        assert found.metadata is not None
        assert found.metadata.version == version
        while jobs._tasks:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert (budget.used, budget.small_used) == (0, 0)
    jobs.close()
    store.close()


def test_an_import_that_is_being_committed_is_neither_ended_nor_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request asks for its end, then the service stops: both wait for the commit."""
    entered, asked, goes_on = Event(), Event(), Event()
    real_put, real_goes_on = LocalStore.put, ImportSteps.should_continue

    def put(self: LocalStore, *arguments: Any) -> Any:
        entered.set()
        assert goes_on.wait(60)
        return real_put(self, *arguments)

    def look(self: ImportSteps) -> bool:
        answer = real_goes_on(self)
        if not answer:
            asked.set()
        return answer

    monkeypatch.setattr(LocalStore, "put", put)
    monkeypatch.setattr(ImportSteps, "should_continue", look)
    monkeypatch.setattr(ImportSteps, "record_progress", lambda self, done: look(self))
    (tmp_path / "a.npy").write_bytes(npy(np.arange(5)))
    store = LocalStore(tmp_path / "store", Limits())
    store.open()
    jobs = ImportJobs(
        store, AllowedSources([parse_prefix(f"file://{tmp_path}")]), Budget(1 << 30),
        max_bytes=1 << 20, at_once=2, count=lambda state, size: None,
    )  # fmt: skip
    url = parse(f"file://{tmp_path}/a.npy")
    number = asyncio.run(jobs.begin(ImportSpec("t", url, None, Conditions()))).id
    assert entered.wait(60)
    assert store.imports.cancel(number)
    assert asked.wait(60)
    closing = Thread(target=jobs.close)
    closing.start()
    closing.join(0.5)  # for what must not be done meanwhile
    assert closing.is_alive()
    (upload,) = (store.folder / "incoming").iterdir()
    assert upload.stat().st_size > 0
    goes_on.set()
    closing.join(60)
    found = store.imports.find(number)
    assert found is not None
    assert (found.state, found.done) == ("done", 40)
    assert read(store, "t").tolist() == [0, 1, 2, 3, 4]
    store.close()


def test_a_file_that_is_still_being_opened_is_closed_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.npy").write_bytes(npy(np.arange(5)))
    source = FileSource(parse(f"file://{tmp_path}/a.npy"), AllowedSources([parse_prefix(f"file://{tmp_path}")]))
    real = os.readlink

    def slowly(path: str) -> str:
        time.sleep(0.3)
        return real(path)

    monkeypatch.setattr(os, "readlink", slowly)

    async def work() -> None:
        opening = asyncio.ensure_future(source.open())
        await asyncio.sleep(0.1)
        opening.cancel()
        await source.close()

    asyncio.run(work())
    assert source._file is None
