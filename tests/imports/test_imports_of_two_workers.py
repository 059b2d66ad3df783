"""Imports of two workers on one store: each knows those of the other, also of one that has died.

tests/workers/test_imports.py has the same with the service, under `make test-all`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from app.store import LocalStore
from app.tensors.shape_limits import Limits
from tests.http.tensors import npy
from tests.imports.range_server import range_server
from tests.store.helpers import read

ROOT = Path(__file__).parents[2]
WORKER = """
import asyncio, sys
from pathlib import Path
from app.imports.import_jobs import ImportJobs
from app.imports.import_steps import ImportSpec
from app.imports.source_urls import AllowedSources, parse, parse_prefix
from app.memory.budget import Budget
from app.store import Conditions, LocalStore
from app.tensors.shape_limits import Limits

folder, token, url = sys.argv[1:]
store = LocalStore(Path(folder), Limits(), token=token)
store.open()
jobs = ImportJobs(
    store, AllowedSources([parse_prefix(url)]), Budget(1 << 30),
    max_bytes=1 << 30, at_once=2, s3_endpoint=None, count=lambda state, size: None,
)

async def main():
    for name in ("whole", "held"):
        record = await jobs.begin(ImportSpec(name, parse(f"{url}/{name}.npy"), None, Conditions()))
        while name == "whole" and store.imports.find(record.id).state == "running":
            await asyncio.sleep(0.01)
        print(record.id, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_each_worker_knows_the_imports_of_the_other_and_one_that_dies_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store", Limits())
    store.open()
    going = Event()
    with range_server() as source:
        source.files = {"/whole.npy": npy(np.arange(10)), "/held.npy": npy(np.zeros(1 << 20))}

        def respond(handler: Any) -> bool:
            if handler.path == "/held.npy" and handler.headers["Range"] != "bytes=0-65535":
                going.wait(60)
            return False

        source.respond = respond
        command = [sys.executable, "-c", WORKER, str(store.folder), store.group.token, source.url]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            whole, held = (worker.stdout.readline().strip() for _ in range(2))
            found = store.imports.find(whole)
            assert found is not None
            assert found.metadata is not None
            assert (found.state, found.metadata.name) == ("done", "whole")
            assert read(store, "whole").tolist() == list(range(10))
            found = store.imports.find(held)
            assert found is not None
            assert (found.state, found.name) == ("running", "held")
            assert len(list((store.folder / "incoming").iterdir())) == 1
            worker.kill()
            worker.wait(60)
        going.set()
    found = store.imports.find(held)
    assert found is not None
    assert found.error is not None
    assert (found.state, found.error.code) == ("failed", "import_failed")
    assert "process" in found.error.detail
    assert store.imports.find(whole) is not None
    store.close()
