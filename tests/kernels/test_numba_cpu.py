from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from app.kernels import numba_cpu
from app.spec.plan import GatherPlan
from tests.kernels.reference import Case, check, make_case, random_plan


def test_no_call_compiles(compiled: Path) -> None:
    """Every item size, read-only and writable arrays, every kind of plan: the one signature of `warm` serves all."""
    from numba.core import event

    source = random.Random(3)
    before = list(numba_cpu._compiled().signatures)
    seen: Counter[int] = Counter()
    with event.install_recorder("numba:compile") as recorder:
        for number in range(2000):
            case = make_case(random_plan(source), source, spoiled=number % 2)
            data, indices = case.data.copy(), case.indices.copy()
            data.flags.writeable, indices.flags.writeable = bool(number & 2), bool(number & 4)
            check(numba_cpu, Case(case.plan, data, indices))
            seen[case.plan.item_size] += 1
    assert set(seen) == {1, 2, 4, 8, 16}
    assert not recorder.buffer
    assert len(before) == 1
    assert numba_cpu._compiled().signatures == before


def test_an_array_of_another_kind_is_refused_rather_than_compiled_for(compiled: Path) -> None:
    plan = GatherPlan(1, 2, (2,), 1, 4, False, True)
    data, out = np.zeros(2, np.uint32), np.zeros(2, np.uint32)
    for indices in (np.zeros(2, np.int32), np.zeros((2, 1), np.int64)):
        with pytest.raises(TypeError, match="No matching definition"):
            numba_cpu.run(plan, data, indices, out)


def test_the_cache_directory_cannot_change_after_compilation(compiled: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="already"):
        numba_cpu.configure(tmp_path)


def test_warm_says_how_long_it_took(compiled: Path) -> None:
    said: list[str] = []
    numba_cpu.warm(said.append)
    assert len(said) == 1
    assert said[0].startswith("gather kernel ready after ")


def test_a_second_process_loads_from_the_cache_what_the_first_compiled(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from app.kernels import numba_cpu as k; "
        "k.configure(Path(sys.argv[1])); k.warm(); print(sum(k._compiled().stats.cache_hits.values()))"
    )
    hits = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]
    assert [folder.name for folder in tmp_path.iterdir()]
