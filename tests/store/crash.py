"""A program that stops the store at every step it takes on the disk, and looks at what is found afterwards.

    python -m tests.store.crash MODE STRIDE SEED SEQUENCE    die at every STRIDE-th step of a sequence of changes

It imports and compiles once and forks for each case. After each death every tensor must be as after the changes that
were acknowledged, or as after one change more, and nothing else may be there. What was read once stays: a reader never
sees a change that is gone later. Every scatter has an Idempotency-Key; those that were acknowledged come again and get
the first answer, and the one under way comes again and is then made once. No ETag ever names two contents. Content,
metadata, lookups and further changes agree in every process. Versions have the numbers that they should have, none is
given twice, and an alias names a version that is there. The record of an import that was answered says how it ended,
until a request asks to forget it.

SEQUENCE is `versions` (uploads, scatters, removals, versions that are kept or not, and aliases of them), `imports`
(whole, failed, ended and forgotten) or `upserts` (tables with keys, changes by key, and growth).

MODE says what dying means. `kill`: the process ends, what it wrote stays. `half`: so, with the last write done by half.
`lost`, `names`, `data` and `first` are a loss of power, of which `lost` keeps what fsync has made durable and nothing
more; `names` keeps what has been done to names too (so a file renamed before its fsync is empty); `data` keeps all
contents, but of names what fsync made durable; `first` keeps, besides what is durable, the first page of each file.

Of two processes of a group, `survivor` kills the one that changes tensors, and the other, which has read each of its
changes, goes on with them; `outage` does so too, and then the power fails in one of the four ways, during that or after
it. `recovered` kills, and the power fails during the recovery that follows or after it. `refused` ends nothing: one
step meets an error of the disk (after an fsync that fails, what it should have written counts as written), the request
that meets it is refused whole and comes again; some changes later the power fails.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app import compile_request_functions
from app.api.routes.tensors_scatter import ScatterAttempt
from app.catalogue.aliases import AliasMove
from app.errors import GatherError
from app.formats import npy as npy_format
from app.imports.import_steps import ImportSpec, ImportSteps
from app.imports.source import Checksum, SourceFailed
from app.imports.source_urls import parse
from app.imports.tensor_in_file import Found
from app.store import Conditions, LocalStore, Resident
from app.store.catalogue.catalogue_rows import RowCounts
from app.store.scatters.pending_scatter import PendingScatter
from app.tensors.operator_signature import Reduction
from app.tensors.shape_limits import Limits
from tests.http.tensors import npy
from tests.store.changed_by_key import (
    REDUCTIONS,
    Key,
    Table,
    as_keys,
    change_by_key,
    keyed_change,
    some_key,
    table_of,
)
from tests.store.helpers import call_of, change_of, files, put, put_alias, scatter_together, strings
from tests.store.keyed import put_keyed
from tests.store.power import LOSSES, Power
from tests.strings import items

PAIRS = ("survivor", "outage")
MODES = ("kill", "half", *LOSSES, *PAIRS, "recovered", "refused")
Tables = dict[str, Any]
"""What there is by plain NumPy: `t@2` is the content of a version, `=a` what the alias `a` names, `#t` the last number
that a version of `t` had."""
State = dict[str, str]
"""What there is: the fingerprint of each version's content, and what each alias names, by the same keys."""
Change = tuple[str, str, Any]
Answers = list[tuple[str, Change, str]]
"""Scatters with their keys and what was answered to them."""
Records = list[tuple[str, str]]
"""The name and the end of each import of which there is a record, the oldest first."""
ALWAYS = Conditions()
DTYPE_OF = {"i": "uint64", "j": "string"}
"""Tables that are changed by key, and the types of their keys."""
CHECKPOINT = 1200
COUNTS: dict[str, RowCounts] = {}
"""What was answered to changes by key, by the ETag."""
LOGS = 20 * CHECKPOINT
"""More than the logs of a few small tensors ever take together."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where the folders are: what dying does is played here, so no real disk needs to be waited for."""


def table(seed: int) -> NDArray[np.float32]:
    """A table whose rows tell its version; some hundreds of bytes more than a block of checksums."""
    return (np.arange(300 * 64, dtype=np.float32) + seed * 1000).reshape(300, 64)


def rows(value: float, *numbers: int) -> tuple[list[list[int]], NDArray[np.float32]]:
    """These rows of a table, each full of a value."""
    return [[number] for number in numbers], np.full((len(numbers), 64), value, np.float32)


def versioned() -> list[Change]:
    """Versions that are kept, that aliases keep and that go; scatters by each way to name one; aliases that move."""
    words = strings("a", "bé", "", "d" * 300)

    return [
        ("put", "t", table(1)),
        ("keep", "t", (2, table(2))),
        ("alias", "a", "t@1"),
        ("scatter", "a", (*rows(-1, 0, 299), "none")),
        ("scatter", "t", (*rows(2, 0, 0, 7), "add")),
        ("scatter", "t@1", (*rows(3, 0), "mul")),
        ("put", "t", table(3)),  # version 2 goes, with a log in which there are keys
        ("scatter", "t", (*rows(4, 5), "add")),
        ("alias", "a", "t@3"),
        ("together", "a", [(*rows(k, 1, 2), "add") for k in range(3)]),
        ("scatter", "a", (*rows(9000, *range(20)), "max")),
        ("alias", "a", "t@1"),
        ("scatter", "a", (*rows(5, 1), "add")),
        ("put", "s", words),
        ("alias", "b", "s@1"),
        ("scatter", "b", ([[3], [0]], strings("", "longer than before"), "none")),
        ("keep", "t", (3, table(4))),
        ("scatter", "t@3", (*rows(6, 2), "add")),
        ("delete", "t@4", None),
        ("scatter", "t", (*rows(7, 2), "add")),
        ("aliases", "", {"a": "t@3", "b": "t@3"}),
        ("delete", "s", None),
        ("unalias", "a", None),
        ("put", "t", table(5)),
        ("unalias", "b", None),
        ("delete", "t", None),
        ("put", "t", table(6)),
        ("put", "u", table(6)),  # equal contents of two names
        ("scatter", "u", ([[298, 3]], np.ones(1, np.float32), "add")),
    ]


def imported() -> list[Change]:
    """Imports as the first and as further versions, one that an alias keeps, some that fail, one that is ended.

    Records of some are forgotten.
    """

    return [
        ("import", "t", (1, table(1))),
        ("scatter", "t", (*rows(2, 0, 7), "add")),
        ("import", "t", (2, table(2))),
        ("alias", "a", "t@1"),
        ("import failed", "t", table(9)),
        ("import", "t", (1, table(3))),
        ("scatter", "a", (*rows(3, 5), "add")),
        ("import ended", "u", table(9)),
        ("forget", "u", None),
        ("put", "u", table(2)),
        ("import", "u", (1, table(2))),
        ("unalias", "a", None),
        ("import failed", "u", table(9)),
        ("import", "t", (1, table(4))),
        ("delete", "u", None),
        ("import", "u", (1, table(5))),
        ("forget", "t", None),
    ]


def upserted() -> list[Change]:
    """Upserts and removals by key, alone and together with others and with scatters by position; tables that grow.

    No table grows for changes that go together: one of them alone would be refused if the disk has no room.
    """
    rng = random.Random(1)

    def values(value: float, count: int) -> NDArray[np.float32]:
        return np.arange(count * 8, dtype=np.float32).reshape(count, 8) + value

    def some(*numbers: int, how: Reduction = "none") -> tuple[list[Key], NDArray[np.float32], Reduction]:
        return [some_key(DTYPE_OF[name], number) for number in numbers], values(rng.randrange(100), len(numbers)), how

    changes: list[Change] = []
    for name in DTYPE_OF:
        changes += [
            ("table", name, (1, Table((*some(*range(20))[0],), values(0, 20)))),
            ("upsert", name, some(3, 20, 21, 3)),
            ("remove", name, some(0, 19, 77)[0]),
            ("scatter", name, ([[0], [-1]], values(1000, 2), "add")),
            ("upsert", name, some(*range(40, 62), 5, how="add")),
            (
                "by key", name,
                [("upsert", some(70, 71)), ("upsert", some(71, 72, how="add")), ("remove", some(70, 5)[0]),
                 ("scatter", ([[1]], values(7, 1), "max")), ("upsert", some(5, 73))],
            ),
            ("remove", name, some(*range(2, 30))[0]),
            ("upsert", name, some(*range(100, 180), 1, how="max")),
            ("remove", name, some(*range(200))[0]),
            ("upsert", name, some(1, 2)),
            ("remove", name, some(1)[0]),
            ("table", name, (2, Table((*some(*range(5))[0],), values(0, 5)))),
            ("alias", "a", f"{name}@1"),
            ("scatter", "a", ([[0]], values(3, 1), "add")),
            ("unalias", "a", None),
            ("table", name, (1, Table((*some(*range(5))[0],), values(9, 5)))),
        ]  # fmt: skip
    return [*changes, ("delete", "i", None), ("table", "j", (1, Table(("",), values(5, 1))))]


SEQUENCES: dict[str, Callable[[], list[Change]]] = {"versions": versioned, "imports": imported, "upserts": upserted}


def numbers_of(tables: Tables | State, name: str) -> list[int]:
    """The numbers of the versions of a tensor that there are."""
    return sorted(int(key.partition("@")[2]) for key in tables if key.startswith(f"{name}@"))


def resolved(tables: Tables | State, reference: str) -> str:
    """The key of what a reference names; of a name that there is not, its own."""
    if f"={reference}" in tables:
        return tables[f"={reference}"]
    numbers = numbers_of(tables, reference)
    return f"{reference}@{numbers[-1]}" if numbers else reference


def expected(tables: Tables, change: Change) -> Tables:
    """What is there after `change`, by plain NumPy."""
    kind, name, what = change
    after = dict(tables)
    if kind == "delete":
        for key in [name] if "@" in name else [f"{name}@{number}" for number in numbers_of(tables, name)]:
            del after[key]
        return after
    if kind in ("import failed", "import ended", "forget"):
        return after
    if kind in ("put", "keep", "table", "import"):
        keep, content = (1, what) if kind == "put" else what
        number = tables.get(f"#{name}", 0) + 1
        for old in numbers_of(tables, name)[: max(0, len(numbers_of(tables, name)) + 1 - keep)]:
            if f"{name}@{old}" not in [target for alias, target in tables.items() if alias[0] == "="]:
                del after[f"{name}@{old}"]
        after[f"{name}@{number}"], after[f"#{name}"] = content, number
        return after
    if kind == "alias":
        assert what in tables
        after[f"={name}"] = what
        return after
    if kind == "aliases":
        assert set(what.values()) <= tables.keys()
        after |= {f"={alias}": target for alias, target in what.items()}
        return after
    if kind == "unalias":
        del after[f"={name}"]
        return after
    if kind in ("together", "by key"):
        for _, one in keyed(change, ""):
            after = expected(after, one)
        return after
    name = resolved(tables, name)
    if kind == "upsert":
        after[name] = tables[name].upserted(*what)[0]
        return after
    if kind == "remove":
        after[name] = tables[name].without(what)[0]
        return after
    before = tables[name]
    data = before.rows.copy() if isinstance(before, Table) else before.copy()
    rows, values, reduction = what
    for place, value in zip(rows, values, strict=True):
        at = tuple(place)
        data[at] = REDUCTIONS[reduction](data[at], value)
    after[name] = Table(before.keys, data) if isinstance(before, Table) else data
    return after


def expected_records(records: Records, change: Change) -> Records:
    """The records of imports after `change`."""
    kind, name, _ = change
    if kind == "forget":
        return [record for record in records if record[0] != name]
    ends = {"import": "done", "import failed": "failed", "import ended": "cancelled"}
    return [*records, (name, ends[kind])] if kind in ends else records


def fingerprint(content: NDArray[Any] | Table) -> str:
    raw = (
        "\0".join(content.tolist()).encode()
        if not isinstance(content, Table) and content.dtype == object
        else content.tobytes()
    )
    return hashlib.md5(raw).hexdigest()[:12]


def state_of(tables: Tables) -> State:
    return {key: what if key[0] == "=" else fingerprint(what) for key, what in tables.items() if key[0] != "#"}


class Course:
    """What `changes` of `tables` lead to.

    `states[at[n]]` is what there is before change number n. Scatters that go together are one change and pass through
    several states. `contents[n]` is what the answers to change n name. `records[n]` are those of imports before it,
    where there were none at first.
    """

    def __init__(self, tables: Tables, changes: Sequence[Change]) -> None:
        self.changes = changes
        self.records: list[Records] = [[]]
        self.tables = [tables]
        self.at = [0]
        self.contents: list[list[str]] = []
        for change in changes:
            contents = []
            for one in [one for _, one in keyed(change, "")] or [change]:
                tables = expected(tables, one)
                self.tables.append(tables)
                if change[0] in ("put", "keep", "table", "import") or keyed(change, ""):
                    contents.append(fingerprint(tables[resolved(tables, change[1])]))
            self.at.append(len(self.tables) - 1)
            self.records.append(expected_records(self.records[-1], change))
            self.contents.append(contents)
        self.states = [state_of(tables) for tables in self.tables]

    def after(self, number: int) -> int:
        """The last state that may be found once `number` changes were acknowledged: that of one change more."""
        return self.at[min(number + 1, len(self.changes))]

    def index(self, state: State, least: int, done: int, case: str) -> int:
        """Which of the states this is, `least` or a later one, after `done` acknowledged changes."""
        allowed = self.states[least : self.after(done) + 1]
        assert state in allowed, f"{case}: {state} is none of {allowed}"
        return least + allowed.index(state)


# What a service asks of its store


def carry_out(store: LocalStore, change: Change, key: str) -> list[str]:
    """Make a change; the ETags that are answered."""
    kind, name, what = change
    if kind in ("put", "keep"):
        keep, content = what if kind == "keep" else (None, what)
        return [put(store, name, content, step=30_000, keep=keep)[0].etag]
    if kind == "table":
        keep, content = what
        keys = as_keys(DTYPE_OF[name], content.keys)
        return [put_keyed(store, name, keys, content.rows, step=30_000, keep=keep).etag]
    if kind.startswith("import"):
        return carry_out_import(store, kind, name, what)
    if kind == "forget":
        for record in store.imports.page(1000, None)[0]:
            if record.name == name:
                assert store.imports.cancel(record.id)
                assert store.imports.find(record.id) is None
        return []
    if kind == "alias":
        put_alias(store, name, what)
        return []
    if kind == "aliases":
        store.put_aliases([AliasMove(*each) for each in what.items()])
        return []
    if kind == "unalias":
        store.delete_alias(name)
        return []
    if kind in ("scatter", "upsert", "remove"):
        return [request(store, change, key)]
    if kind in ("together", "by key"):
        batch = [pending_of(store, one, each) for each, one in keyed(change, key)]
        outcomes = scatter_together(store, name, batch)
        for outcome in outcomes:
            if isinstance(outcome, GatherError):
                raise outcome
            if isinstance(outcome, OSError):
                raise GatherError("insufficient_storage", str(outcome))
        return outcomes
    store.delete(name)
    return []


def carry_out_import(store: LocalStore, kind: str, name: str, what: Any) -> list[str]:
    """An import of an npy file, whole, or one that fails or is ended in the middle; the ETags that are answered."""
    keep, content = what if kind == "import" else (1, what)
    raw = npy(content)
    start = npy_format.read_start(raw)
    assert start is not None
    found_in_file = Found(start, start.offset, len(raw), raw[: start.offset])
    checksum = Checksum("sha256", bytes(32) if kind == "import failed" else hashlib.sha256(raw).digest())
    asked = ImportSpec(name, parse("https://source.example/t.npy"), None, ALWAYS, keep)
    steps = ImportSteps(asked, found_in_file, checksum, len(raw))
    try:
        steps.enter(store)
    except BaseException:
        steps.undo()
        raise
    try:
        for at in range(start.offset, len(raw), 30_000):
            steps.take(raw[at : at + 30_000])
            with suppress(OSError):
                steps.record_progress(steps.done)
            if kind == "import ended":
                assert store.imports.cancel(steps.record.id)
                assert not steps.should_continue()
                steps.stop(closing=False)
                assert steps.record.state == "cancelled"
                return []
        steps.commit(store)
    except SourceFailed as problem:
        if kind != "import failed":
            raise
        steps.fail(problem.as_error(steps.record.url))
        return []
    except GatherError as problem:
        steps.fail(problem)
        raise
    assert steps.record.metadata is not None
    return [steps.record.metadata.etag]


def check_imports(store: LocalStore, folder: Path, case: str) -> Records:
    """Every import has ended; nothing but its record is there. The records."""
    records, following = store.imports.page(1000, None)
    assert following is None
    assert list((folder / "imports").iterdir()) == [], case
    for record in records:
        assert record.state in ("done", "failed", "cancelled"), (case, record)
        assert record.ended is not None, (case, record)
        assert (record.metadata is None) == (record.state != "done"), (case, record)
        assert (record.error is None) == (record.state != "failed"), (case, record)
    return [(record.name, record.state) for record in records]


class KnownRecords(NamedTuple):
    """Records of imports that must be there. Others may be there of imports of tensors named in `interrupted`.

    `attempts` of those may have ended otherwise: one whose content was replaced before anybody saw it has failed.
    """

    least: Records
    interrupted: set[str]
    attempts: int = 0

    def check(self, there: Records, case: str) -> None:
        """There are records of the imports that were answered, as they ended, and else of interrupted ones alone."""
        told = f"{case}: of the imports {self.least} there are {there}"
        assert (Counter(self.least) - Counter(there)).total() <= self.attempts, told
        assert {name for name, _ in Counter(there) - Counter(self.least)} <= self.interrupted, told


def tried(store: LocalStore, change: Change, key: str) -> tuple[list[str], GatherError | OSError | None]:
    """`carry_out`, or the error that it met."""
    try:
        return carry_out(store, change, key), None
    except (GatherError, OSError) as error:
        return [], error


def request(store: LocalStore, change: Change, key: str) -> str:
    """A scatter or a change by key as it comes from a client; the ETag."""
    kind, name, what = change
    turn = Event()
    if kind != "scatter":
        return request_by_key(store, change, key)
    rows, values, reduction = what
    attempt = ScatterAttempt(store, name, call_of(rows, values, reduction), ALWAYS, key, digest(key), turn.set)
    while (scattered := attempt.advance()) is None:
        turn.wait()
        turn.clear()
    return scattered.etag


def request_by_key(store: LocalStore, change: Change, key: str) -> str:
    """A change by key; the ETag. Its counts are the same whenever it comes again."""
    try:
        answered = change_by_key(store, change[1], pending_of(store, change, key).change)
    except GatherError:
        known = store.find_answer(change[1], key, digest(key))
        if known is None:
            raise
        answered = known
    assert answered.counts is not None
    assert COUNTS.setdefault(answered.etag, answered.counts) == answered.counts
    return answered.etag


def pending_of(store: LocalStore, change: Change, key: str) -> PendingScatter:
    """A scatter or a change by key that waits to be carried out."""
    kind, name, what = change
    if kind == "scatter":
        rows, values, reduction = what
        return PendingScatter(change_of(store, name, rows, values, reduction, key, digest(key)))
    keys, values, how = what if kind == "upsert" else (what, None, None)
    of_type = as_keys(DTYPE_OF[name], keys)
    return PendingScatter(keyed_change(store, name, of_type, values, how or "none", key, digest(key)))


def digest(key: str) -> str:
    return f"of {key}"


def keyed(change: Change, key: str) -> list[tuple[str, Change]]:
    """The scatters of a change, one by one, with their keys."""
    kind, name, what = change
    if kind in ("scatter", "upsert", "remove"):
        return [(key, change)]
    if kind == "together":
        return [(f"{key}.{number}", ("scatter", name, one)) for number, one in enumerate(what)]
    if kind == "by key":
        return [(f"{key}.{number}", (of, name, one)) for number, (of, one) in enumerate(what)]
    return []


def once(store: LocalStore, change: Change, key: str, *, made: bool) -> list[str]:
    """What a client does whose request was not answered: scatters come again with their keys, others if need be."""
    again = keyed(change, key)
    if again:
        return [request(store, one, each) for each, one in again]
    return [] if made else carry_out(store, change, key)


def look(store: LocalStore, name: str) -> tuple[Any, str] | None:
    """The content of a tensor and its ETag, read as the service answers a gather."""
    resident = store.get(name)
    if resident is None:
        return None
    for _ in range(4):
        values = values_of(resident)
        if resident.is_consistent:
            return values, resident.etag
        resident = resident.refreshed()
    with resident.exclude_writers():
        resident = resident.refreshed()
        values = values_of(resident)
        assert resident.is_consistent
    return values, resident.etag


def values_of(resident: Resident) -> Any:
    tensor = resident.tensor
    if resident.keys is not None and resident.keys.dtype in DTYPE_OF.values():
        return table_of(resident)
    return items(tensor).reshape(tensor.shape)


class Etags:
    """Which content each ETag named when it was answered or read."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def note(self, etag: str, content: str) -> None:
        assert self.known.setdefault(etag, content) == content, f"the ETag {etag} names two contents"


def found(store: LocalStore, etags: Etags) -> State:
    """All that is there, by every way of asking, which must agree."""
    state: State = {}
    for name in store.names():
        numbers = store.version_numbers(name)
        assert numbers, f"{name} is listed and has no version"
        for reference in (*(f"{name}@{number}" for number in numbers), name):
            seen = look(store, reference)
            assert seen is not None, f"{reference} is listed and not found"
            content, etag = fingerprint(seen[0]), seen[1]
            etags.note(etag, content)
            metadata = store.metadata(reference)
            assert metadata.etag == etag, f"{reference}: a gather reads {etag}, metadata says {metadata}"
            download = store.content(reference).resident()
            assert (download.etag, fingerprint(values_of(download))) == (etag, content), (
                f"{reference}: a download is of another content"
            )
            assert (metadata.keys is not None) == (name in DTYPE_OF), f"{reference}: {metadata}"
            if reference != name:
                state[reference] = content
                assert reference == f"{name}@{metadata.version}"
        assert state[f"{name}@{numbers[-1]}"] == content, f"{name} is not its newest version"
    for name in "ijstuv":
        assert numbers_of(state, name) or look(store, name) is None, f"{name} is found and not listed"
    for alias in store.alias_names():
        target = store.alias(alias).reference
        seen = look(store, alias)
        assert seen is not None
        assert fingerprint(seen[0]) == state[target], f"{alias} does not read what it names"
        state[f"={alias}"] = target
    for alias in "ab":
        assert f"={alias}" in state or look(store, alias) is None, f"{alias} is found and not listed"
    return state


class Complaints(logging.Handler):
    """What the store warns of, which no crash is a reason for."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []
        logging.getLogger("gathernd").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


COMPLAINTS = Complaints()


def forked(work: Callable[[], object]) -> int:
    """The exit code of `work` in a child."""
    return os.waitstatus_to_exitcode(os.waitpid(spawned(work), 0)[1])


def spawned(work: Callable[[], object]) -> int:
    """The number of a child that does `work`."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  (told in the child's name)
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def opened(folder: Path, token: str | None = None) -> LocalStore:
    store = LocalStore(folder, Limits(), token=token)
    store.open()
    store._checkpoints.checkpoint_bytes = CHECKPOINT
    return store


def judge(
    folder: Path,
    allowed: list[State],
    case: str,
    etags: Etags,
    again: Answers,
    under_way: tuple[str, Change] | None = None,
    records: KnownRecords | None = None,
) -> None:
    """A restart finds one of the states that are allowed, sound and tidy, and twice the same; and the store works.

    Scatters that were acknowledged and come `again` with their keys change nothing; the change that was `under_way` is
    made once, whether it was before or not. `records` are those of imports.
    """
    again = list(again)
    forgotten = under_way[1][1] if under_way is not None and under_way[1][0] == "forget" else None
    for turn in range(2):
        store = opened(folder)
        state = found(store, etags)
        assert state in allowed, f"{case}: {state} is none of {allowed}"
        assert {path.split("/")[0] for path in files(folder)} <= {"tensors", "logs"}, (case, files(folder))
        versions = [key for key in state if key[0] != "="]
        kept = len(versions) + sum(2 * len(numbers_of(state, name)) for name in DTYPE_OF)
        assert len([path for path in files(folder) if path.startswith("tensors/")]) == kept, case
        there = check_imports(store, folder, case)
        if records is not None:
            records.check(there, case)
        store.verify(Event(), 0)
        for name in store.names():
            store.metadata(name)
        check_answers(store, again, case)
        if under_way is not None and turn == 0 and len(allowed) > 1:
            key, change = under_way
            made = state == allowed[-1] and forgotten is None
            answers = once(store, change, key, made=made)
            assert all(name != forgotten for name, _ in check_imports(store, folder, case)), case
            state = found(store, etags)
            assert state == allowed[-1], f"{case}: {change[0]} came again and was not made once"
            again += [(each, one, answer) for (each, one), answer in zip(keyed(change, key), answers, strict=False)]
        check_answers(store, again, case)
        assert found(store, etags) == state, f"{case}: a scatter that came again was made again"
        put(store, "after", np.arange(3))
        assert request(store, ("scatter", "after", ([[0]], np.array([5]), "none")), f"after-{case}-{turn}") != ""
        seen = look(store, "after")
        assert seen is not None
        assert seen[0].tolist() == [5, 1, 2]
        store.delete("after")
        store.close()
        allowed = [state]
    assert not COMPLAINTS.texts, (case, COMPLAINTS.texts)


def check_answers(store: LocalStore, again: Answers, case: str) -> None:
    """Scatters that were acknowledged get their first answer, by a lookup of the key and when they come again."""
    for key, change, answer in again:
        scattered = store.find_answer(change[1], key, digest(key))
        assert scattered is not None, (case, key)
        assert scattered.etag == answer, (case, key)
        assert request(store, change, key) == answer, (case, key)


# Dying at every step


class ReportFile:
    """What the processes of a case report: a file of lines, which outlives them."""

    def __init__(self, path: Path, course: Course) -> None:
        self.path, self.course = path, course
        path.write_text("")

    def acknowledge(self, number: int, answers: list[str]) -> None:
        self._tell(["done", number, answers])

    def seen(self, index: int) -> None:
        """A reader has seen this state."""
        self._tell(["seen", index, []])

    def _tell(self, line: list[Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def read(self, etags: Etags) -> tuple[int, int, Answers]:
        """How many changes were acknowledged, the least state that must be there, and the scatters with answers."""
        done, least = 0, 0
        again: Answers = []
        for line in self.path.read_text().splitlines():
            kind, number, answers = json.loads(line)
            if kind == "seen":
                assert number >= least, f"state {least} was seen or acknowledged, and is not there any more"
                least = number
                continue
            done = number + 1
            least = max(least, self.course.at[done])
            change = self.course.changes[number]
            # A change that was found made, and is no scatter, has no answer.
            for etag, content in zip(answers, self.course.contents[number], strict=False):
                etags.note(etag, content)
            again += [
                (key, one, etag) for (key, one), etag in zip(keyed(change, key_of(number)), answers, strict=False)
            ]
        return done, least, again


def key_of(number: int) -> str:
    return f"key-{number}"


def deaths(stride: int, seed: int, run: Callable[[Path, int, random.Random], bool]) -> int:
    """Die at every `stride`-th step; how many deaths there were.

    `run` has a folder and the number of a step, and tells whether that was reached.
    """
    rng = random.Random(seed)
    count, last = 0, 1 + rng.randrange(stride)
    while True:
        with tempfile.TemporaryDirectory(dir=MEMORY) as room:
            if not run(Path(room), last, rng):
                return count
        count += 1
        last += stride


class Case:
    """One sequence of changes that is stopped at its step number `last`."""

    def __init__(self, room: Path, course: Course, mode: str, last: int, rng: random.Random) -> None:
        self.mode, self.last, self.rng = mode, last, rng
        self.folder, self.image, self.handover = room / "store", room / "image", room / "handover"
        self.course, self.changes = course, course.changes
        self.reports = ReportFile(room / "reports", course)
        self.etags = Etags()
        self.loss = rng.choice(LOSSES)
        self.second = rng.randrange(1, 60)
        self.name = f"{mode}, step {last}"
        if mode in ("outage", "recovered", "refused"):
            self.name += f", then {self.loss} at step {self.second}"
        opened(self.folder).close()

    def run(self) -> bool:
        """Whether the step was reached."""
        if self.mode in PAIRS:
            code = forked(self.survive)
        else:
            code = forked(self.refused if self.mode == "refused" else self.change_alone)
        assert code in (0, 137), (self.name, code)
        left = self.image if self.image.exists() else self.folder
        if self.mode == "recovered":
            assert forked(self.recover) == 137
            left = self.image
        elif code == 137 and self.rng.random() < 0.5:
            # The restart dies too.
            second = self.rng.randrange(1, 20)
            forked(lambda: self.die_in_recovery(left, second))
        done, least, again = self.reports.read(self.etags)
        allowed = self.course.states[least : self.course.after(done) + 1]
        under_way = (key_of(done), self.changes[done]) if done < len(self.changes) else None
        case = f"{self.name}, after {done} changes"
        judge(left, allowed, case, self.etags, again, under_way, self.records(done))
        if code == 0 and self.mode not in PAIRS:
            assert done == len(self.changes)
        return (self.folder.parent / "died").exists()

    def records(self, done: int) -> KnownRecords:
        """The records of imports that are known after `done` changes."""
        kind, name, _ = self.changes[done] if done < len(self.changes) else ("", "", None)
        least = self.course.records[done + (kind == "forget")]
        if self.mode in (*PAIRS, "refused"):  # what was interrupted came again
            return KnownRecords(least, {name for kind, name, _ in self.changes if kind.startswith("import")}, 2)
        return KnownRecords(least, {name} if kind.startswith("import") or kind == "forget" else set())

    def note_death(self) -> None:
        (self.folder.parent / "died").touch()

    def change_alone(self) -> None:
        """Carry out all changes, and die."""
        store = opened(self.folder)
        power = Power(self.folder, self.image)
        mode = "kill" if self.mode == "recovered" else self.mode
        power.arm(mode, self.last, self.handover)
        power.dying = self.note_death
        self.go_on(store, 0)
        if mode in LOSSES:
            power.draw()
        power.hand_over()

    def go_on(self, store: LocalStore, first: int) -> None:
        for number in range(first, len(self.changes)):
            self.reports.acknowledge(number, carry_out(store, self.changes[number], key_of(number)))

    def die_in_recovery(self, folder: Path, last: int) -> None:
        Power(folder, folder).arm("kill", last)
        opened(folder)

    def recover(self) -> None:
        """The restart after a kill, during or after which the power fails: what it has served must be there then."""
        power = Power(self.folder, self.image)
        power.take_over(self.handover)
        power.arm(self.loss, self.second % 30)
        store = opened(self.folder)
        self.look_around(store)
        power.die()

    def look_around(self, store: LocalStore) -> int:
        """Read everything; which state it is."""
        etags = Etags()
        done, least, _ = self.reports.read(etags)
        index = self.course.index(found(store, etags), least, done, self.name)
        self.reports.seen(index)
        return index

    # Two processes

    def survive(self) -> None:
        """A worker that has read each change of another one, which dies, and goes on."""
        store = opened(self.folder)
        power = Power(self.folder, self.image)
        ours, theirs = os.pipe(), os.pipe()

        def work() -> None:
            os.close(ours[0])
            os.close(theirs[1])
            own = opened(self.folder, store.group.token)
            power.arm(self.rng.choice(("kill", "half")), self.last, self.handover)
            power.dying = self.note_death
            for number, change in enumerate(self.changes):
                self.reports.acknowledge(number, carry_out(own, change, key_of(number)))
                os.write(ours[1], b"x")
                assert os.read(theirs[0], 1) == b"x"
            power.hand_over()

        store._catalogue.close()  # SQLite's connections must not be there in two processes
        child = spawned(work)
        os.close(ours[1])
        os.close(theirs[0])
        number = 0
        while os.read(ours[0], 1):
            number += 1
            assert self.look_around(store) == self.course.at[number], f"{self.name}: a stale read"
            os.write(theirs[1], b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (0, 137)
        power.take_over(self.handover)
        if self.mode == "outage":
            power.arm(self.loss, self.second)
        self.finish(store, self.look_around(store))
        logs = sum(path.stat().st_size for path in (self.folder / "logs").iterdir())
        assert logs < LOGS, f"{self.name}: the logs have grown to {logs} bytes"
        assert not COMPLAINTS.texts, (self.name, COMPLAINTS.texts)
        if self.mode == "outage":
            power.die()
        store.close()

    def finish(self, store: LocalStore, index: int) -> None:
        """From state `index` to the last: those acknowledged come again, the one under way, and those after it."""
        done, _, again = self.reports.read(Etags())
        for key, change, answer in again:
            assert request(store, change, key) == answer, f"{self.name}: {key} was answered otherwise"
        for number in range(done, len(self.changes)):
            change, key = self.changes[number], key_of(number)
            made = index == self.course.after(done)
            answers = once(store, change, key, made=made) if number == done else carry_out(store, change, key)
            self.reports.acknowledge(number, answers)
            assert self.look_around(store) == self.course.at[number + 1]

    # A disk that refuses

    def refused(self) -> None:
        """One step meets an error of the disk; who gets that error asks again, and other processes see no change."""
        store = opened(self.folder)
        beside = opened(self.folder, store.group.token)
        power = Power(self.folder, self.image)
        power.arm("refused", self.last)
        more = self.second % 5
        for number, change in enumerate(self.changes):
            answers, error = tried(store, change, key_of(number))
            if error is not None:
                # What an upload's pieces meet is an OSError, of which the route makes insufficient_storage.
                assert power.refused, error
                assert isinstance(error, OSError) or error.code == "insufficient_storage", error
                for each in (store, beside):
                    state = found(each, Etags())
                    assert state == self.course.states[self.course.at[number]], (
                        f"{self.name} ({power.refused}): change {number} was refused, and is there"
                    )
                answers = carry_out(store, change, key_of(number))
            self.reports.acknowledge(number, answers)
            for each in (store, beside):
                assert self.look_around(each) == self.course.at[number + 1], self.name
            more -= bool(power.refused)
            if more < 0:
                break
        if power.count >= self.last:
            self.note_death()
        power.mode = self.loss
        power.die()


def compile_once() -> None:
    """Make every kind of change once: the children that are forked afterwards have the code compiled for them.

    It is loaded from the folder GATHERND_CACHE_DIR, where that is set.
    """
    cache = os.environ.get("GATHERND_CACHE_DIR")
    if cache is not None:
        compile_request_functions.configure(Path(cache))
        compile_request_functions.warm()
    for sequence in SEQUENCES.values():
        with tempfile.TemporaryDirectory(dir=MEMORY) as room:
            store = opened(Path(room) / "store")
            for number, change in enumerate(sequence()):
                carry_out(store, change, key_of(number))
            store.close()
    assert not COMPLAINTS.texts, COMPLAINTS.texts


def main() -> None:
    mode, stride, seed, sequence = sys.argv[1:]
    compile_once()
    course = Course({}, SEQUENCES[sequence]())
    count = deaths(int(stride), int(seed), lambda room, last, rng: Case(room, course, mode, last, rng).run())
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main()
