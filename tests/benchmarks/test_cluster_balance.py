"""The calculation of a cluster's balance: shares add up, skew shows, and the bounds are where they are told to be."""

from __future__ import annotations

import numpy as np
import pytest

from app.cluster.router import sharded_service
from app.cluster.shard import shard_agent
from benchmarks.cluster_balance import (
    CALLS_A_SECOND,
    Costs,
    asks_per_request,
    bounds,
    machine_work,
    main,
    most_machines,
    range_shares,
    zipf_shares,
)


def test_shares_are_those_of_zipf() -> None:
    shares = zipf_shares(1000, 1.05)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] / shares[9] == pytest.approx(10**1.05)
    assert range_shares(shares, 7).sum() == pytest.approx(1)


def test_equal_ranges_on_as_many_machines_are_even() -> None:
    work = machine_work(np.full(8, 1 / 8), 8, 2, 64, Costs())
    assert work.max() == pytest.approx(work.min())


def test_work_is_what_all_asks_and_rows_cost() -> None:
    shares = range_shares(zipf_shares(1000, 1.05), 12)
    costs = Costs(shard_ask=3, shard_row=2)
    work = machine_work(shares, 4, 2, 10, costs)
    assert work.sum() == pytest.approx(3 * asks_per_request(shares, 10) + 2 * 10)


def test_more_replicas_even_out_a_popular_range() -> None:
    shares = range_shares(zipf_shares(10_000, 1.05), 8)
    worst = [machine_work(shares, 8, replicas, 256, Costs(0, 1, 0, 0, 0)).max() for replicas in (1, 2, 4)]
    assert worst == sorted(worst, reverse=True)


@pytest.mark.parametrize(
    ("costs", "gigabits", "bound"),
    [
        (Costs(shard_ask=10**4), 1000.0, "shards"),
        (Costs(router_ask=10**4), 1000.0, "routers"),
        (Costs(), 1.0, "network"),
    ],
)
def test_the_bound_is_the_part_that_costs_most(costs: Costs, gigabits: float, bound: str) -> None:
    assert bounds(np.full(4, 1 / 4), 4, 1, 256, 4096, 2, gigabits, costs).first == bound


def test_the_coordinator_is_called_as_often_as_shards_and_routers_do() -> None:
    assert CALLS_A_SECOND == 1 / sharded_service._ASK_S == 2 / shard_agent.INVENTORY_S
    assert most_machines(800, 1) == 200
    assert most_machines(800, 3) == 100


def test_it_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rows", "20000", "--machines", "16"])
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 1 + 4 * 3 * 2 + 1 + 7 * 4
