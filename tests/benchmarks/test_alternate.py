"""The comparison of two checkouts by turns: its arithmetic, its order, and what it asks of a service."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest

from benchmarks import alternate, common, peers
from benchmarks.alternate import Turn
from tests.http.server import ROOT


def test_the_figure_is_the_median_of_the_ratios_of_pairs_not_the_ratio_of_medians() -> None:
    old, new = [100.0, 200.0, 400.0], [110.0, 190.0, 200.0]
    assert alternate.paired(old, new).median == pytest.approx(0.95)
    assert alternate.paired(old, new).low == pytest.approx((0.5 + 0.95) / 2)
    assert alternate.paired(old, new).high == pytest.approx((0.95 + 1.1) / 2)


def test_one_slow_while_does_not_move_the_figure() -> None:
    old, new = [100.0] * 9 + [50.0], [97.0] * 9 + [500.0]
    assert alternate.paired(old, new).median == pytest.approx(0.97)


def test_turns_go_old_new_new_old_and_are_paired_by_side() -> None:
    asked: list[str] = []

    def one_turn(side: str) -> Turn:
        asked.append(side)
        return Turn(len(asked), {"old": 1, "new": 2}[side])

    pairs = alternate.alternate(one_turn, 4)
    assert asked == ["old", "new", "new", "old", "old", "new", "new", "old"]
    assert [(old.rate_cpu, new.rate_cpu) for old, new in pairs] == [(1, 2)] * 4
    assert [(old.rate, new.rate) for old, new in pairs] == [(1, 2), (4, 3), (5, 6), (8, 7)]


def test_a_row_has_both_medians_and_both_ratios() -> None:
    pairs = [(Turn(1000, 2000), Turn(1100, 2000)), (Turn(3000, 4000), Turn(3300, 8000))]
    cells = alternate.row("tiny JSON", pairs)
    assert cells[:4] == ["tiny JSON", "2,000", "2,200", "1.100 (1.100 .. 1.100)"]
    assert cells[4] == "1.500 (1.250 .. 1.750)"
    assert len({len(alternate.line(cells)), len(alternate.line(alternate.HEAD))}) == 1


def test_each_checkout_runs_its_own_python_where_it_has_one(tmp_path: Path) -> None:
    assert "serve" in alternate.command(tmp_path, {0})(1)
    assert str(tmp_path) not in " ".join(alternate.command(tmp_path, {0})(1))
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert str(python) in alternate.command(tmp_path, {0})(1)
    assert alternate.command(tmp_path, {0})(1)[-2:] == ["--port", "1"]  # by which processor_time finds it


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs the Debian package wrk")
def test_every_piece_of_work_is_driven_and_puts_many_contents_under_many_names(
    warmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ROWS", 1000)
    work = alternate.all_work()
    names = [
        "tiny JSON",
        "pipelined JSON",
        "large JSON",
        "JSON lookup",
        "binary lookup",
        "4 MB inline",
        "scatter",
        "small PUT",
    ]
    assert list(work) == names
    environ = {"GATHERND_CACHE_DIR": str(warmed)}
    served, _ = common.halves(together=True)
    with common.serving(alternate.command(ROOT, served), environ=environ, limit=120) as port:
        peers.upload(port)
        for piece in work.values():
            done = alternate.turn(port, piece, 1, warm=1)
            assert 0 < done.rate < done.rate_cpu * 2 * len(served)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:
            tensors = client.get("/tensors", params={"limit": 1000}).json()["tensors"]
    small = {tensor["etag"] for tensor in tensors if tensor["name"].startswith("small-")}
    assert len(small) == alternate.PUT_NAMES
