"""Gradients between guard pages: `python -m tests.kernels.guarded_backward KERNEL CASES SEED [CACHE_DIR]`.

Every array lies against a page that may not be touched, now before it, now behind it; grad_output and indices are seen
through read-only pages (see `tests.kernels.guarded`). Results are compared with unbuffered sums of NumPy's, and each
third case has an array shorter than its plan, which has to be refused.
"""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels.numba_cpu.chunked_job import shared_team
from app.operators.backward_plan import FLOAT_TYPES, BackwardPlan
from app.operators.gather_plan import GatherPlan
from app.tensors.dtypes import DTYPES, INTEGERS
from tests.kernels.guarded import Guarded

ITEMS: dict[str, np.dtype[Any]] = {name: DTYPES[name].numpy for name in FLOAT_TYPES}
PAGES = 300
ROOMS: dict[str, Guarded] = {}


def laid(role: str, values: NDArray[Any], at_end: bool) -> NDArray[Any]:
    """`values` in the memory for `role`, against one of its guards."""
    room = ROOMS.get(role) or ROOMS.setdefault(role, Guarded(PAGES, role not in ("grad_output", "indices")))
    start = room.start(values.nbytes, at_end)
    room.back[start : start + values.nbytes] = values.view(np.uint8)
    return room.front[start : start + values.nbytes].view(values.dtype)


def random_plan(source: random.Random) -> BackwardPlan:
    float_type = source.choice(FLOAT_TYPES)
    sparse = source.random() < 0.4
    dims = tuple(source.choice((1, 2, 3, 7, 40, 300)) for _ in range(source.choice((1, 1, 2, 3))))[:2]
    batches = 1 if sparse else source.choice((1, 1, 2, 5))
    tuples, width = source.choice((0, 1, 3, 30, 500)), source.choice((0, 1, 1, 2, 5, 17))
    while batches * (int(np.prod(dims)) + tuples) * width * 8 > PAGES * 4096:
        width //= 2
    while batches * int(np.prod(dims)) * 8 > PAGES * 4096:
        dims = dims[:1]
    size = ITEMS[float_type].itemsize
    gather = GatherPlan(batches, tuples, dims, width, size, source.random() < 0.5, source.random() < 0.7)
    return BackwardPlan(gather, float_type, sparse, source.choice((1.0, -0.7)))


def random_indices(plan: BackwardPlan, source: random.Random, chance: np.random.Generator) -> NDArray[Any]:
    sizes = np.tile(np.array(plan.dims, np.int64), plan.index_tuples)
    indices = chance.integers(-sizes if plan.wrap else 0 * sizes, sizes)
    if len(indices) and source.random() < 0.2:
        place = source.randrange(len(indices))
        indices[place] = source.choice((sizes[place], -sizes[place] - 1, 2**62, -(2**63)))
    kind = np.iinfo(source.choice(INTEGERS))
    if len(indices) and kind.min <= indices.min() and indices.max() <= kind.max:
        return indices.astype(kind.dtype)
    return indices


def unbuffered(
    plan: BackwardPlan, grad_output: NDArray[Any], indices: NDArray[Any]
) -> tuple[int, NDArray[Any], NDArray[np.int64]]:
    """The first bad component, the result, and the places that are named: sums of NumPy's, one after the other."""
    item = ITEMS[plan.float_type]
    number = np.float64 if plan.float_type == "float64" else np.float32
    wide = indices.astype(np.int64)
    sizes = np.tile(np.array(plan.dims, np.int64), plan.index_tuples)
    bad = np.flatnonzero((wide >= sizes) | (wide < (-sizes if plan.wrap else 0 * sizes)))
    if len(bad):
        return int(bad[0]), grad_output, wide
    columns = (wide % sizes).reshape(-1, plan.depth)
    flat = np.zeros(len(columns), np.int64)
    for axis, size in enumerate(plan.dims):
        flat = flat * size + columns[:, axis]
    if plan.broadcast_indices:
        flat = np.tile(flat, plan.batches)
    rows = int(np.prod(plan.dims))
    flat = flat + np.repeat(np.arange(plan.batches), plan.tuples) * rows
    sums = np.zeros((plan.batches * rows, plan.slice_items), number)
    np.add.at(sums, flat, grad_output.view(item).reshape(len(flat), plan.slice_items).astype(number))
    result = (sums * number(plan.coefficient)).astype(item)
    named = np.unique(flat)
    return -1, result[named] if plan.sparse else result, named


def case(kernel: Any, source: random.Random, chance: np.random.Generator, *, short: bool) -> str:
    plan = random_plan(source)
    carrier = np.dtype(f"u{plan.item_size}")
    grad_output = chance.standard_normal(plan.data_items).astype(ITEMS[plan.float_type]).view(carrier)
    arrays: dict[str, NDArray[Any]] = {
        "grad_output": grad_output,
        "indices": random_indices(plan, source, chance),
        "out": np.full(plan.output_items, 0xA5, carrier),
        "scratch": np.full(plan.scratch_items, -1, np.int64),
    }
    if plan.sparse:
        arrays |= {"places": np.full(plan.rows, -1, np.int64), "count": np.zeros(1, np.int64)}
    if short:
        role = source.choice([name for name, array in arrays.items() if len(array)])
        arrays[role] = arrays[role][: -source.randint(1, len(arrays[role]))]
    given = {role: laid(role, array, source.random() < 0.5) for role, array in arrays.items()}
    threads = source.choice((1, 1, 2, 4)) if kernel.splits else 1
    further = {role: given[role] for role in ("scratch", "places", "count") if role in given}
    try:
        first = kernel.run(plan, given["grad_output"], given["indices"], given["out"], threads, further=further)
    except TypeError:
        return "" if short else f"refused: {plan}"
    if short:
        return f"a short array was not refused: {plan}"
    bad, wanted, named = unbuffered(plan, grad_output, arrays["indices"])
    if first != bad:
        return f"first bad component {first}, not {bad}: {plan}"
    if bad >= 0:
        return ""
    got = given["out"]
    if plan.sparse:
        count = int(given["count"][0])
        got = got[: count * plan.slice_items]
        if given["places"][:count].tolist() != named.tolist():
            return f"other places: {plan}"
    return "" if got.tobytes() == wanted.tobytes() else f"other bits: {plan}"


def main(arguments: list[str]) -> None:
    """Run what the command line says."""
    name, cases, seed, *rest = arguments
    kernel = importlib.import_module(name)
    if rest:
        kernel.configure(Path(rest[0]))
        kernel.warm()
        shared_team().settings["wake_from"] = 0  # helpers are woken for every case
    source, chance = random.Random(seed), np.random.default_rng(int(seed))
    for number in range(int(cases)):
        wrong = case(kernel, source, chance, short=number % 3 == 2)
        assert not wrong, f"case {number} of seed {seed}: {wrong}"


if __name__ == "__main__":
    main(sys.argv[1:])
