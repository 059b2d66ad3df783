"""Records of replicated contents as a test makes them, and what a content is after each, by plain NumPy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.store import LocalStore
from app.store.files.write_uploaded_tensor import UploadSpec
from app.store.publish_and_remove_versions import CarriedKey, CopiedContent
from app.store.scatters.log_frames import Entry, Record, decode, encode, frames_in
from app.store.scatters.replicated_contents import Batch, Replication
from app.tensors.dtypes import DTYPES
from tests.store.helpers import uploaded

TENSOR = "c.0-300"
WIDTH = 64
ROWS = 300


@dataclass(frozen=True)
class Made:
    """A record of a model: it sets some rows to one value. Its key tells it from all others."""

    sequence: int
    epoch: int
    rows: tuple[int, ...]
    value: float
    key: str

    def record(self) -> Record:
        """As it stands in a log."""
        values = np.full((len(self.rows), WIDTH), self.value, np.float32).view(np.uint8).reshape(len(self.rows), -1)
        entry = Entry(
            self.sequence, time.time_ns(), self.key, digest(self.key), "", len(self.rows), 4 * WIDTH, 1, TENSOR, 1,
            self.epoch,
        )  # fmt: skip
        return Record(entry, np.array(self.rows, np.uint64), values)


def digest(key: str) -> str:
    return f"of {key}"


def frame(records: Sequence[Made]) -> bytes:
    return encode([one.record() for one in records])


def read_frames(frames: bytes) -> list[tuple[int, int, tuple[int, ...], float, str | None]]:
    """What frames say, as `told` has it."""
    return [
        (
            record.entry.sequence, record.entry.epoch, tuple(record.rows.tolist()),
            float(record.values[0].view(np.float32)[0]), record.entry.key,
        )
        for one in frames_in(frames)
        for record in decode(one)
    ]  # fmt: skip


def told(records: Sequence[Made]) -> list[tuple[int, int, tuple[int, ...], float, str | None]]:
    return [(one.sequence, one.epoch, one.rows, one.value, one.key) for one in records]


def content_after(records: Sequence[Made]) -> NDArray[np.float32]:
    """What a content of zeros is after these records."""
    content = np.zeros((ROWS, WIDTH), np.float32)
    for one in records:
        content[list(one.rows)] = one.value
    return content


def values_of(store: LocalStore) -> NDArray[Any]:
    """The content as it lies there."""
    tensor = store.content(TENSOR).resident().tensor
    return tensor.array.reshape(ROWS, WIDTH).copy()


def adopt(store: LocalStore, records: Sequence[Made], epoch: int) -> None:
    """Publish the content after these records, with their keys."""
    spec = UploadSpec(TENSOR, DTYPES["float32"], (ROWS, WIDTH))
    upload = uploaded(store, spec, content_after(records).tobytes(), 1 << 16)
    keys = [CarriedKey(one.key, digest(one.key), one.sequence, 0) for one in records]
    store.replicated.adopt(upload, CopiedContent(len(records), epoch, records[-1].epoch if records else 0, keys))


class Alone(Replication):
    """A primary without replicas."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.kept = False

    def lead(self, tensor: str) -> int:
        with self.store.replicated.open(tensor) as content:
            content.commit_to(content.state().last)
            content.settle()
            return content.state().epoch

    def replicate(self, tensor: str, batch: Batch) -> None:
        """All replicas have it."""

    def keeps_log(self, tensor: str) -> bool:
        return self.kept
