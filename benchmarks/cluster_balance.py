"""Tables in row ranges under skew: how even is the load, and what do 64 machines carry? Calculated, not measured.

python -m benchmarks.cluster_balance [--rows 10000000] [--zipf 1.05] [--machines 64] [--cores 16] [--gigabits 25] ...

First the balance. Rows are asked for with Zipf's law; ranges are cut and placed as routers do it
(`app/cluster/catalogue/node_choice.py`), and replicas of a range are asked by turns. Two orders of the rows:
`scattered`, where popular rows lie anywhere, as with ids by hash or by date of sign-up, and `sorted`, where the most
popular come first, the worst that can be. A shard's work for a request is a part for being asked at all and a part for
each row, so that a range with popular rows has many rows more than another one, but hardly more asks.

Then what a cluster of so many machines carries, by what is its bound: the shards, the routers, or the network. The
constants are options; their defaults are microseconds of one core of an AMD EPYC, with rows of 256 bytes, fitted to
what `benchmarks/cluster.py` measured on 2026-11-25 with 16 lookups at a time, all processes on two cores. The router
took 205, 352 and 598 µs for 256 rows over 1, 4 and 8 ranges, and 531 for 1,024 rows over 4; each of their shards 106,
121, 151 and 139. Every machine is taken to run a shard and a router, and to give half of its cores to each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.cluster.catalogue.node_choice import place_ranges
from app.cluster.catalogue.transitions import segment_bounds

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Microseconds of one core."""

    shard_ask: float = 110.0
    """Of a shard, for being asked."""
    shard_row: float = 0.1
    """Of a shard, for each row."""
    router_request: float = 90.0
    """Of a router, for a request."""
    router_ask: float = 55.0
    """Of a router, for asking one shard."""
    router_row: float = 0.23
    """Of a router, for each row."""


def zipf_shares(rows: int, exponent: float) -> Shares:
    """Which share of all asked rows each row is, the most popular first."""
    shares = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    shares /= shares.sum()
    return shares


def range_shares(shares: Shares, ranges: int) -> Shares:
    """Which share of all asked rows each range has."""
    starts = [start for start, _ in segment_bounds(len(shares), ranges)]
    return np.add.reduceat(shares, starts)


def machine_work(shares: Shares, machines: int, replicas: int, rows_per_request: int, costs: Costs) -> Shares:
    """Microseconds of each machine's shard for one request, on average; `shares` are those of the ranges."""
    asked = 1 - (1 - shares) ** rows_per_request
    work = asked * costs.shard_ask + shares * rows_per_request * costs.shard_row
    placed = place_ranges({f"n{number:04}": 10**9 for number in range(machines)}, [1] * len(shares), replicas)
    assert placed is not None
    total = dict.fromkeys((f"n{number:04}" for number in range(machines)), 0.0)
    for own, nodes in zip(work, placed, strict=True):
        for node in nodes:
            total[node] += own / replicas
    return np.array(list(total.values()))


def asks_per_request(shares: Shares, rows_per_request: int) -> float:
    """How many ranges a request touches, on average."""
    return float((1 - (1 - shares) ** rows_per_request).sum())


@dataclass(frozen=True)
class Bounds:
    """Requests a second that each part carries by itself."""

    shards: float
    routers: float
    network: float

    @property
    def first(self) -> str:
        """The part that carries the least."""
        return min(vars(self), key=lambda name: vars(self)[name])


def bounds(
    shares: Shares,
    machines: int,
    replicas: int,
    rows_per_request: int,
    row_bytes: int,
    cores: int,
    gigabits: float,
    costs: Costs,
) -> Bounds:
    """What a cluster carries: the busiest shard, all routers together, and the links of all machines.

    A row leaves its shard's machine once and its router's machine once more.
    """
    own = cores / 2 * 1e6
    busiest = machine_work(shares, machines, replicas, rows_per_request, costs).max()
    asks = asks_per_request(shares, rows_per_request)
    router = costs.router_request + asks * costs.router_ask + rows_per_request * costs.router_row
    sent = 2 * rows_per_request * row_bytes
    return Bounds(own / busiest, machines * own / router, machines * gigabits * 1e9 / 8 / sent)


def balance_lines(shares: Shares, machines: int, rows_per_request: int, costs: Costs) -> list[str]:
    """A line for each number of ranges and replicas: the busiest machine over the mean."""
    orders = {"scattered": np.random.default_rng(18).permutation(shares), "sorted": shares}
    lines = ["| ranges | replicas | order | hottest range, of all rows | busiest machine × mean, by rows | by work |"]
    lines.append("|---|---|---|---|---|---|")
    for ranges in (machines // 2, machines, 4 * machines, 16 * machines):
        for replicas in (1, 2, 3):
            for name, order in orders.items():
                own = range_shares(order, ranges)
                by_rows = machine_work(own, machines, replicas, rows_per_request, Costs(0, 1, 0, 0, 0))
                by_work = machine_work(own, machines, replicas, rows_per_request, costs)
                ratios = [float(one.max() / one.mean()) for one in (by_rows, by_work)]
                line = f"| {ranges} | {replicas} | {name} | {own.max():.1%} | {ratios[0]:.2f} | {ratios[1]:.2f} |"
                lines.append(line)
    return lines


def capacity_lines(shares: Shares, options: argparse.Namespace, costs: Costs) -> list[str]:
    """A line for each number of ranges, replicas and rows of a request: what is carried, and what is the bound."""
    order = np.random.default_rng(18).permutation(shares)
    machines = options.machines
    cuts = [(4, 2), (4, machines // 2), (16, 2), (16, machines // 8)]
    cuts += [(machines // 2, 2), (machines, 2), (4 * machines, 2)]
    lines = ["| ranges × replicas | rows of a request | shards asked | shards | routers | network | rows/s | bound |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for ranges, replicas in cuts:
        for rows in (1, 64, 256, 4096):
            own = range_shares(order, ranges)
            link, cores = options.gigabits, options.cores
            found = bounds(own, machines, replicas, rows, options.row_bytes, cores, link, costs)
            least = min(found.shards, found.routers, found.network)
            lines.append(
                f"| {ranges} × {replicas} | {rows} | {asks_per_request(own, rows):.1f} | {found.shards:,.0f} "
                f"| {found.routers:,.0f} | {found.network:,.0f} | {least * rows:,.0f} | {found.first} |"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--machines", type=int, default=64)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--gigabits", type=float, default=25.0, help="of each machine's link, each way")
    parser.add_argument("--row-bytes", type=int, default=256)
    parser.add_argument("--rows-per-request", type=int, default=256, help="of the first table")
    parser.add_argument("--router-processes", type=int, default=1, help="of each machine: gathernd serve --workers")
    for name, default in vars(Costs()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, help="microseconds")
    options = parser.parse_args(arguments)
    costs = Costs(**{name: getattr(options, name) for name in vars(Costs())})
    shares = zipf_shares(options.rows, options.zipf)
    print(f"{options.rows:,} rows, Zipf {options.zipf}: the most popular row is {shares[0]:.1%} of all\n")
    print(f"{options.machines} machines, {options.rows_per_request} rows a request\n")
    print("\n".join(balance_lines(shares, options.machines, options.rows_per_request, costs)))
    print(f"\n{options.machines} machines of {options.cores} cores, {options.gigabits:g} Gbit/s;")
    print(f"rows of {options.row_bytes} bytes; requests a second that each part carries by itself\n")
    print("\n".join(capacity_lines(shares, options, costs)))


if __name__ == "__main__":
    main()
