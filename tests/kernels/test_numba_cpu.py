from __future__ import annotations

import ast
import random
from pathlib import Path

from app.kernels.numba_cpu import compile_kernel, gather_kernel
from tests.kernels.reference import Case, gather, make_case, random_plan


def test_no_call_compiles(compiled: Path) -> None:
    """Every item size, read-only and writable arrays, every kind of plan: the one signature of `warm` serves all."""
    from numba.core import event

    source = random.Random(3)
    entry, _ = gather_kernel.compiled().functions
    before = list(entry.signatures)
    cases: list[Case] = []
    for number in range(600):
        case = make_case(random_plan(source), source, spoiled=number % 2)
        data, indices = case.data.copy(), case.indices.copy()
        data.flags.writeable, indices.flags.writeable = bool(number & 2), bool(number & 4)
        cases.append(Case(case.plan, data, indices))
    expected = [gather(case) for case in cases]  # before the recorder, because the reference compiles
    with event.install_recorder("numba:compile") as recorder:
        for case, (output, bad) in zip(cases, expected, strict=True):
            out = case.out()
            assert gather_kernel.run(case.plan, case.data, case.indices, out) == bad, case.plan
            assert bad >= 0 or out.tobytes() == output, case.plan
    assert {case.plan.item_size for case in cases} == {1, 2, 4, 8, 16}
    assert not recorder.buffer
    assert len(before) == 1
    assert list(entry.signatures) == before


def test_the_cache_is_named_by_all_files_that_compiled_code_has_constants_of() -> None:
    """Numba's own cache does not see that a constant of another file has changed."""
    named = {module.__name__ for module in compile_kernel._COMPILED_FROM}
    folder = Path(gather_kernel.__file__).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("app."):
                constants = [each.name for each in node.names if each.name.isupper()]
                inside = str(node.module).startswith(("app.kernels.numba_cpu.", "app.compilation."))
                assert inside or not constants or node.module in named, f"{file.name}: {node.module} {constants}"
