from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from app.store import LocalStore, StoreInUse
from app.store.processes import directory_lock
from app.tensors.shape_limits import Limits
from tests.store.helpers import opened, put, read

HOLDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from app.store import LocalStore
from app.tensors.shape_limits import Limits
store = LocalStore(Path({folder!r}), Limits(), token={token!r})
store.open()
print(store.group.token, flush=True)
time.sleep(60)
"""


def holder(folder: Path, token: str | None = None) -> tuple[subprocess.Popen[str], str]:
    """A process that has the store, as owner or as worker under `token`, and its token."""
    program = HOLDER.format(root=str(Path(__file__).parents[2]), folder=str(folder), token=token)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert process.stdout is not None
    process.stdout.close()


def test_a_second_owner_is_refused_with_the_folder_named(store: LocalStore, folder: Path) -> None:
    put(store, "x", np.arange(3))
    second = LocalStore(folder, Limits())
    with pytest.raises(StoreInUse, match=str(folder)):
        second.open()
    assert read(store, "x").tolist() == [0, 1, 2]
    store.close()
    second.open()
    assert read(second, "x").tolist() == [0, 1, 2]
    second.close()


def test_a_killed_owner_leaves_the_store_free(folder: Path) -> None:
    process, _ = holder(folder)
    with pytest.raises(StoreInUse):
        LocalStore(folder, Limits()).open()
    end(process)
    store = opened(folder)
    store.close()


def test_a_service_started_at_once_waits_for_the_workers_of_a_killed_one(folder: Path) -> None:
    owner, token = holder(folder)
    worker, _ = holder(folder, token)
    end(owner)
    soon = Timer(0.3, end, [worker])
    soon.start()
    store = opened(folder)
    store.close()
    soon.join()


def test_workers_that_outlive_their_parent_keep_others_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_lock, "WORKERS_END_WITHIN", 0.2)
    owner, token = holder(folder)
    worker, same = holder(folder, token)
    assert same == token
    end(owner)
    with pytest.raises(StoreInUse, match="worker processes"):
        LocalStore(folder, Limits()).open()
    with pytest.raises(StoreInUse, match="first process"):
        LocalStore(folder, Limits(), token=token).open()
    end(worker)
    store = opened(folder)
    store.close()


def test_a_token_of_another_folder_does_not_count(store: LocalStore, tmp_path: Path) -> None:
    another = opened(tmp_path / "another", token=store.group.token)
    assert another.group.owner
    assert store.group.token != another.group.token
    another.close()
