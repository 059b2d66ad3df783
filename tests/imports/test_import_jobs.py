"""Imports give back what they hold, whatever their source does."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import numpy as np
import pytest

from app.errors import GatherError
from app.imports.file_source import FileSource
from app.imports.import_jobs import ImportJobs
from app.imports.import_steps import ImportRequest
from app.imports.source_urls import AllowedSources, parse, parse_prefix
from app.memory.budget import Budget
from app.store import Conditions, LocalStore
from app.store.import_records import ImportRecord
from app.tensors.shape_limits import Limits
from tests.http.tensors import npy


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
        max_bytes=1 << 20, at_once=1, s3_endpoint=None, count=lambda state, size: None,
    )  # fmt: skip

    def begin(name: str) -> ImportRecord:
        return asyncio.run(jobs.begin(ImportRequest("t", parse(f"file://{tmp_path}/{name}"), None, Conditions())))

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
