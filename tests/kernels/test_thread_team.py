from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.kernels import Unfinished
from app.kernels.numba_cpu import chunked_job, gather_kernel, thread_team
from app.kernels.numba_cpu.thread_team import ThreadTeam
from app.operators.gather_plan import GatherPlan
from tests.conftest import SOAK, samples
from tests.kernels.loops import gather_by_loops
from tests.kernels.reference import Case, make_case, random_plan

LONG = GatherPlan(1, 400_000, (50_000,), 1, 8, False, True)


@pytest.fixture
def team(compiled: Path) -> Iterator[ThreadTeam]:
    """The kernel's, which takes chunks as small as can be while the test runs."""
    found = chunked_job.shared_team()
    before = found.settings.copy()
    found.settings["least_tuples"], found.settings["nontemporal_from"] = 1, 1 << 12
    yield found
    found.settings[:] = before


@pytest.fixture
def other_team(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadTeam]:
    """One that the kernel has for as long as the test runs, and that has no helpers yet."""
    made = chunked_job.shared_team.__wrapped__()
    monkeypatch.setattr(gather_kernel, "shared_team", lambda: made)
    yield made
    made.end()


def check_with(case: Case, threads: int, times: int = 1) -> None:
    """Run the case over so many threads, and compare; so many times."""
    for _ in checks_with(case, threads, times):
        pass


def checks_with(case: Case, threads: int, times: int) -> Iterator[None]:
    """The same, with a pause after each time: what is expected is computed once."""
    expected = np.zeros(case.plan.output_bytes, np.uint8)
    bad = gather_by_loops(case.plan, case.data, case.indices, expected)
    for _ in range(times):
        out = case.out()
        assert gather_kernel.run(case.plan, case.data, case.indices, out, threads) == bad, case.plan
        assert bad >= 0 or out.tobytes() == expected.tobytes(), case.plan
        yield


def test_several_threads_gather_at_once_and_all_are_right(team: ThreadTeam) -> None:
    """One of them has the team at a time; the others do the whole alone, and nobody reads what is another's."""

    def gather(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(1500 if SOAK else 300):
            plan = random_plan(source)
            if plan.output_bytes < 1 << 16 and plan.data_items < 1 << 16:
                check_with(make_case(plan, source, source.choice((0, 0, 1))), source.randint(1, 4))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(gather, range(4)))


def joined(team: ThreadTeam, threads: int) -> int:
    """How many helpers took part in the last gather, which was over so many threads."""
    return int(team._items[thread_team._JOINED]) + threads - 1


def asleep(team: ThreadTeam) -> int:
    return int(team._items[thread_team._ASLEEP])


def wait_until_asleep(team: ThreadTeam) -> None:
    ends = time.monotonic() + 60
    while asleep(team) < team.helpers:
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_a_long_gather_wakes_helpers(other_team: ThreadTeam) -> None:
    case = make_case(LONG, random.Random(1))
    for threads in (2, 3):
        most = 0
        for _ in checks_with(case, threads, 200):
            most = max(most, joined(other_team, threads))
            wait_until_asleep(other_team)
            if most:
                break
        assert most >= 1
        assert other_team.helpers == threads - 1


def stop_a_helper(team: ThreadTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one had gone in, and the system had taken its core from it."""
    monkeypatch.setattr(team, "grow", lambda _: None)
    team._items[thread_team._HELPERS] = 1
    team._items[thread_team._INSIDE] += 1


@pytest.mark.parametrize("spoiled", [0, 3])
def test_an_owner_in_a_hurry_leaves_a_gather_whose_helper_was_stopped_and_another_thread_ends_it(
    other_team: ThreadTeam, monkeypatch: pytest.MonkeyPatch, spoiled: int
) -> None:
    stop_a_helper(other_team, monkeypatch)
    case = make_case(LONG, random.Random(spoiled), spoiled)
    expected = np.zeros(case.plan.output_bytes, np.uint8)
    bad = gather_by_loops(case.plan, case.data, case.indices, expected)
    out = case.out()
    with pytest.raises(Unfinished) as left:
        gather_kernel.run(case.plan, case.data, case.indices, out, 2, may_leave_unfinished=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(left.value.wait)
        # Meanwhile others do without the team, and wait for nobody.
        check_with(make_case(LONG, random.Random(9), spoiled), 2, times=20)
        assert not waiting.done()
        other_team._items[thread_team._INSIDE] -= 1
        assert waiting.result(60) == bad
    assert bad >= 0 or out.tobytes() == expected.tobytes()
    assert not other_team.unfinished
    assert other_team._items[thread_team._OWNED] == 0


def test_arrays_of_a_gather_that_was_left_stay_as_long_as_a_helper_may_write_to_them(
    other_team: ThreadTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_a_helper(other_team, monkeypatch)
    case = make_case(LONG, random.Random(1))
    room = np.zeros(LONG.output_bytes, np.uint8)
    gone = weakref.ref(room)
    with pytest.raises(Unfinished):
        gather_kernel.run(LONG, case.data, case.indices, room.view(np.uint64), 2, may_leave_unfinished=True)
    del room
    gc.collect()
    assert gone() is not None
    other_team._items[thread_team._INSIDE] -= 1
    check_with(case, 2)  # nobody waited: the next gather frees the team
    gc.collect()
    assert gone() is None
    assert not other_team.unfinished


def test_a_signal_does_not_end_a_helpers_sleep_for_good(other_team: ThreadTeam) -> None:
    case = make_case(LONG, random.Random(1))
    check_with(case, 2)
    (helper,) = other_team._threads
    assert helper.ident is not None
    arrived: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: arrived.append(number))
    try:
        for sent in range(20):
            wait_until_asleep(other_team)
            signal.pthread_kill(helper.ident, signal.SIGUSR1)
            while len(arrived) == sent:  # one that came after its handler had gone would end the process
                time.sleep(1e-3)
        wait_until_asleep(other_team)
    finally:
        signal.signal(signal.SIGUSR1, before)
    most = 0
    for _ in checks_with(case, 2, 200):
        most = max(most, joined(other_team, 2))
        if most:
            break
    assert most == 1


def test_a_process_ends_whatever_its_helpers_do(compiled: Path) -> None:
    program = """if True:
        import sys, threading
        from pathlib import Path
        import numpy as np
        from app.kernels import numba_cpu as kernel
        from app.operators.gather_plan import GatherPlan
        kernel.configure(Path(sys.argv[1]))
        kernel.warm()
        plan = GatherPlan(1, 400_000, (50,), 1, 8, False, True)
        data, indices, out = np.zeros(50, np.uint64), np.zeros(400_000, np.int64), np.zeros(400_000, np.uint64)
        def gather():
            while True:
                kernel.run(plan, data, indices, out, 3)
        kernel.run(plan, data, indices, out, 3)
        threading.Thread(target=gather, daemon=True).start()
        kernel.run(plan, data, indices, out, 3)
    """
    for _ in range(samples(8)):
        run = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", program, str(compiled)],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            check=False,
            timeout=120,
        )
        assert (run.returncode, run.stderr) == (0, "")
