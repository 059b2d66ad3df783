"""A program that stops the store at every step of changes of a replicated content: see `crash_replicated_case`.

    python -m tests.store.crash_replicated MODE STRIDE SEED COURSE

COURSE is `rows` (scatters of rows) or `growth` (changes by key). It prints how many deaths it tried.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from app import compile_request_functions
from app.store import LocalStore
from tests.store.crash import deaths
from tests.store.crash_replicated_case import Case, Contents, Course, Model
from tests.store.crash_replicated_growth import KEYED_CONTENTS
from tests.store.helpers import put, scatter
from tests.store.replicated import (
    ROWS,
    TENSOR,
    WIDTH,
    Alone,
    Made,
    adopt,
    content_after,
    digest,
    frame,
    read_frames,
    told,
    values_of,
)


class RowCourse(Course):
    """Scatters of rows."""

    def make(self, *rows: tuple[int, ...]) -> list[Made]:
        """The next records."""
        made = []
        for number, each in enumerate(rows):
            self.keys += 1
            sequence = len(self.now.records) + 1 + number
            made.append(Made(sequence, self.now.epoch, each, float(self.keys), f"k{self.keys}"))
        return made

    def append(self, *rows: tuple[int, ...]) -> None:
        made = self.make(*rows)

        def work(store: LocalStore) -> None:
            with store.replicated.open(TENSOR) as content:
                content.append_frames(frame(made))

        self.add(f"append {len(made)}", work, replace(self.now, records=(*self.now.records, *made)))

    def scatter(self, *rows: int) -> None:
        """A scatter that this store makes, as a primary or by itself."""
        (made,) = self.make(rows)

        def work(store: LocalStore) -> None:
            store.replicated.replication = Alone(store)
            values = np.full((len(rows), WIDTH), made.value, np.float32)
            scatter(store, TENSOR, [[row] for row in rows], values, key=made.key, digest=digest(made.key))

        records = (*self.now.records, made)
        self.add("scatter", work, replace(self.now, records=records, applied=len(records)))

    def adopt(self, epoch: int, *rows: tuple[int, ...]) -> None:
        """A copy that has what is committed, and some records more."""
        after = replace(self.now, epoch=epoch, records=self.now.records[: self.now.applied])
        self.add("", lambda _: None, after)
        made = self.make(*rows)
        self.changes.pop()
        records = (*after.records, *made)
        scatters = [one for one in records if isinstance(one, Made)]
        self.add("adopt", lambda store: adopt(store, scatters, epoch), Model(epoch, records, len(records)))


def course() -> Course:
    """Every kind of change, with checkpoints of logs with and without a tail among them."""
    made = RowCourse()
    made.scatter(0, 299)
    made.epoch(1)
    made.append((1, 2), (2, 3), (3, 299))
    made.commit(3)
    made.append((4,))
    made.epoch(2)
    made.drop(4)
    made.append((5, 6), (4, 7))
    made.commit(5)
    made.append((7,), (8, 9), (9, 10), (10,))
    made.drop(8)  # within a frame
    made.epoch(3)
    made.append((11, 298), (12,))
    for row in range(20, 28):
        made.append((row, row + 1))
        made.commit(len(made.now.records) - 1)
    made.drop(made.now.applied)
    made.append((13,), (14,))
    made.commit(made.now.applied + 1)
    made.commit(len(made.now.records))
    made.scatter(15, 16)
    made.scatter(16, 17, 18)
    made.append((17,))
    made.adopt(5, (18,), (19, 0))
    made.append((20,), (21, 299))
    made.commit(len(made.now.records) - 1)
    made.commit(len(made.now.records))
    made.scatter(22)
    return made


ROW_CONTENTS = Contents(
    lambda store: put(store, TENSOR, np.zeros((ROWS, WIDTH), np.float32)),
    course,
    read_frames,
    told,
    lambda store: values_of(store).tobytes(),
    lambda records: content_after(records).tobytes(),
)


COURSES = {"rows": ROW_CONTENTS, "growth": KEYED_CONTENTS}


def main() -> None:
    mode, stride, seed, course = sys.argv[1:]
    compile_request_functions.configure(Path(os.environ["GATHERND_CACHE_DIR"]))
    compile_request_functions.warm()
    contents = COURSES[course]
    count = deaths(int(stride), int(seed), lambda room, last, rng: Case(room, mode, last, rng, contents).run())
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main()
