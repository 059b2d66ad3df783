"""The memory that reading a body takes: charged before it is taken, so that the budget holds, whatever the body is."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from pathlib import Path

import pytest

from app.errors import GatherError
from app.json_text.grammar import check
from app.memory.budget import Memory
from app.requests.envelope_cache import envelopes
from tests.conftest import SOAK, slow_but_for
from tests.costly_bodies.makers import MAKERS, OPERATOR_MAKERS, SCATTER, bombs
from tests.costly_bodies.read_body import CODINGS, Body, read, read_coded
from tests.told_memory import ToldMemory
from tests.traced_memory import peak_of

CONSTANT_BYTES = 3 << 20
"""What any request may hold for a moment: the part of it that becomes Python objects is limited."""
SMALL, SAMPLE, LARGE = 30_000, 200_000, 1_000_000
HEADER = 60_000
"""A query is a part of the header, which is limited."""

pytestmark = [pytest.mark.usefixtures("compiled"), pytest.mark.long]


@pytest.fixture(scope="module", autouse=True)
def undisturbed(compiled: Path) -> Iterator[None]:
    """No garbage collection in the middle of what was there before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def sizes(group: str) -> tuple[int, ...]:
    """How large the bodies of a group are made in the sample."""
    own = {"query": (HEADER,), "npy": (2_000, 20_000), "fields": (SMALL, SAMPLE)}
    return own.get(group, (SAMPLE,))


def sample(group: str) -> list[Body]:
    """Some of the bodies of a group: all where they are few."""
    bodies = [body for size in sizes(group) for body in MAKERS[group](size)]
    step = max(1, len(bodies) // (200 if SOAK else 3))
    return bodies[:: step + 1 - step % 2]  # an odd step meets every format and every element


def of_at_most(total: int, group: str, size: int, start: int = 0) -> list[Body]:
    """Bodies of a group, of `total` bytes together at most; of the others none is kept."""
    count = sum(1 for _ in MAKERS[group](2_000))
    step = -(-count * size // total)
    return list(islice(MAKERS[group](size), start % step, None, step + 1 - step % 2))


Reader = Callable[[Memory], object]


def plain(body: Body) -> Reader:
    return lambda memory: read(body, memory)


def untold(body: Body, reader: Reader | None = None) -> str | None:
    """What memory is taken that was not charged before, if any is, and is taken again when the body is read again.

    The first time, a table of the process may grow that all bodies share, such as that of the interned strings: at
    175,000 of them it becomes 3.8 MB.
    """
    run = reader or plain(body)
    return taken_once(body, run) and taken_once(body, run)


def taken_once(body: Body, run: Reader) -> str | None:
    """What memory is taken that was not charged before, if any is."""
    charges: list[int] = []
    peak = peak_of(lambda: run(ToldMemory(charges.append))) - CONSTANT_BYTES
    most = max(accumulate(charges), default=0)
    if peak > most:
        # What other threads take meanwhile is counted too: an earlier test may have left one.
        threads = ", ".join(one.name for one in threading.enumerate() if one is not threading.current_thread())
        told = f"{peak} bytes, of which {most} were charged; other threads: {threads}"
        return f"{body.format} {body.to}, {body.name}: {told}"
    return None


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_is_refused_with_an_error_of_another_kind(group: str) -> None:
    bodies = list(MAKERS[group](HEADER if group == "query" else 20_000))
    for body in bodies[:: 1 if SOAK else 7]:
        read(body)  # it gives the code of a GatherError, and lets others pass: too many calls within each other, too


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_takes_memory_untold(group: str) -> None:
    assert not [found for body in sample(group) if (found := untold(body))]


@pytest.mark.parametrize("group", MAKERS)
def test_no_body_takes_more_memory_than_the_budget_has(group: str) -> None:
    """The half of what it asks for; charges that do not fit are refused."""
    for body in sample(group)[::5]:
        charges: list[int] = []
        read(body, ToldMemory(charges.append))
        budget = max(accumulate(charges), default=0) // 2
        held = 0

        def charge(size: int, budget: int = budget) -> None:
            nonlocal held
            if held + size > budget:
                raise GatherError("overloaded", f"no room for {size}")
            held += size

        code = ""

        def run(body: Body = body, charge: Callable[[int], None] = charge) -> None:
            nonlocal code
            code = read(body, ToldMemory(charge)) or ""

        assert peak_of(run) <= budget + CONSTANT_BYTES, (body.format, body.to, body.name)
        assert budget == 0 or code, (body.format, body.to, body.name)


_LONG = [pytest.param(name, marks=pytest.mark.slow) for name in ("binary", "values", "base64", "fields")]


@pytest.mark.parametrize("group", ["single", *_LONG])
def test_memory_of_bodies_beside_which_the_constant_is_small_is_told(group: str) -> None:
    bodies = list(MAKERS[group](LARGE))
    assert not [found for body in bodies[7 :: max(1, len(bodies) // 4) | 1] if (found := untold(body))]


@pytest.mark.parametrize("name", ["unknown field spaces and an emoji", "unknown field letters"])
@pytest.mark.parametrize("form", ["json", "v2"])
@pytest.mark.parametrize("size", slow_but_for((LARGE,), (LARGE, 5 * LARGE)))
def test_large_fields_that_are_no_values_are_told_before_they_are_copied(name: str, form: str, size: int) -> None:
    body = next(one for one in MAKERS["single"](size) if (one.name, one.format) == (name, form))
    assert untold(body) is None


def coded_wrongs(bodies: Iterable[Body], coding: str) -> list[str]:
    """What memory compressed bodies take untold."""
    encoding, compress = CODINGS[coding]
    wrong = []
    for body in bodies:
        coded = compress(body.content)
        cap = len(body.content)

        def reader(memory: Memory, body: Body = body, coded: bytes = coded, cap: int = cap) -> object:
            return read_coded(body, encoding, coded, cap, memory)

        found = untold(body, reader)
        wrong += [] if found is None else [f"{coding}: {found}"]
    return wrong


@pytest.mark.parametrize("coding", slow_but_for(("gzip", "raw deflate", "deflate, bytes behind it"), CODINGS))
def test_a_compressed_body_takes_no_memory_untold(coding: str) -> None:
    bodies = [body for group in ("values", "single", "base64", "fields", "binary") for body in MAKERS[group](SAMPLE)]
    start = 5 * list(CODINGS).index(coding)
    assert not coded_wrongs([*bodies[start :: len(bodies) // (18 if SOAK else 3) | 1], *bombs(LARGE)], coding)


@pytest.mark.soak
@pytest.mark.parametrize("group", ["values", "single", "base64", "fields", "binary"])
@pytest.mark.parametrize("coding", CODINGS)
def test_compressed_bodies_of_every_group_take_no_memory_untold(group: str, coding: str) -> None:
    start = list(CODINGS).index(coding)
    assert not coded_wrongs(of_at_most(60 * LARGE, group, LARGE // 2, start), coding)


@pytest.mark.soak
@pytest.mark.parametrize("coding", CODINGS)
def test_no_bomb_takes_memory_untold(coding: str) -> None:
    assert not coded_wrongs(bombs(20 * LARGE), coding)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate"])
def test_a_bomb_beyond_the_cap_is_refused_before_more_than_the_cap_is_held(coding: str) -> None:
    encoding, compress = CODINGS[coding]
    coded = compress(bytes(64 * LARGE))
    charges: list[int] = []
    codes = []
    bomb = Body("bomb", "json", "gathernd", b"")
    peak = peak_of(lambda: codes.append(read_coded(bomb, encoding, coded, 4 * LARGE, ToldMemory(charges.append))))
    assert codes == ["payload_too_large"]
    assert max(accumulate(charges)) <= 4 * LARGE
    assert peak <= 4 * LARGE + CONSTANT_BYTES


@pytest.mark.soak
@pytest.mark.parametrize("group", MAKERS)
@pytest.mark.parametrize("size", [SMALL, LARGE, 5 * LARGE])
def test_bodies_of_every_size_take_no_memory_untold(group: str, size: int) -> None:
    if group in ("query", "npy"):
        size = min(size, HEADER)
    wrong = []
    total = 100 if group in OPERATOR_MAKERS else 400
    for body in of_at_most(total * LARGE, group, size):
        wrong += [found for found in (untold(body),) if found]
    assert not wrong


@pytest.mark.parametrize(("form", "to"), [("json", "gathernd"), ("v2", "gathernd"), ("json", SCATTER)])
def test_what_the_budget_refuses_is_not_looked_at_again(form: str, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ("float32, 0.1", form, to)
    body = next(one for one in MAKERS["values"](SMALL) if one[:3] == wanted)

    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    def walked(*_: object, **__: object) -> None:
        raise AssertionError("walked although refused")

    monkeypatch.setattr(check, "run", walked)
    assert read(body, ToldMemory(full)) == "overloaded"


def test_a_check_of_the_grammar_is_told_before_it_takes_memory() -> None:
    keys = ",".join(f'"{number}":0' for number in range(50_000))
    cut = f'{{"data": {{"dtype": "int8", "shape": [1], "values": [{{{keys}}}]}}'
    for text in (cut, f'{cut}, "indices": {{"dtype": "int64", "values": [[0]]}}}}'):
        body = Body("keys", "json", "gathernd", text.encode())
        tracemalloc.start()
        charges: list[int] = []
        read(body, ToldMemory(charges.append))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= sum(charges) + 200_000


def test_a_protocol_head_of_more_than_its_bound_is_not_remembered() -> None:
    def infer(lead: int) -> Body:
        items = bytes(4 * 50_000)
        inputs = [
            {"name": "data", "datatype": "FP32", "shape": [50_000], "parameters": {"binary_data_size": len(items)}},
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]},
        ]
        text = json.dumps({"inputs": inputs, "x": "y" * lead}).encode()
        return Body("head", "v2", "gathernd", text + items, json_size=len(text))

    for lead, remembered in ((0, 1), (20_000, 0)):
        envelopes.clear()
        assert read(infer(lead)) is None
        assert len(envelopes) == remembered, lead
