"""What must hold in the end: every acknowledged add once on every replica, every other one at most once."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import numpy as np

from app.cluster.catalogue.listed_segments import Listed, listed_segments
from tests.cluster.chaos.load import RANGE_ROWS, TABLE, WIDTH, Told
from tests.cluster.chaos.processes import KEY, RANGES, REPLICAS, ROUTERS, Cluster
from tests.cluster.waiting import until
from tests.http.tensors import RAW
from tests.parity.items import Array

NOT_SERVED = 404, 412
OF_SHARDS = {"authorization": f"Bearer {KEY}"}


def check(cluster: Cluster, told: Told) -> None:
    """Compare what clients were told with all replicas. Raises AssertionError."""
    found: list[list[Array]] = []

    def whole() -> bool:
        listed = list(listed_segments(cluster.catalogue.refresh()))
        found[:] = [_replicas(cluster, one) for one in listed] if all(_is_whole(cluster, one) for one in listed) else []
        return bool(found) and all(len(replicas) == REPLICAS for replicas in found)

    until(whole, "all replicas are in sync and have applied the same", 200)
    assert [len(first) for first, *_ in found] == [RANGE_ROWS] * RANGES
    for number, (first, *others) in enumerate(found):
        assert all(np.array_equal(first, other) for other in others), f"the replicas of range {number} differ"
    table = np.concatenate([first for first, *_ in found])
    _check_adds(told, table)
    etags = set()
    for router in ROUTERS:
        routed = _content(cluster.url(router), TABLE, cluster.headers)
        assert routed is not None, router
        assert np.array_equal(routed, table), router
        url = f"{cluster.url(router)}/tensors/{TABLE}"
        etags.add(httpx.get(url, headers=cluster.headers, trust_env=False, timeout=60).headers["etag"])
    assert len(etags) == 1, etags
    assert not told.wrongs, "\n".join(told.wrongs[:20])


def _replicas(cluster: Cluster, one: Listed) -> list[Array]:
    """The rows of a range on each of its shards that serve them: one may not know yet that it is in sync."""
    read = [_content(cluster.url(node), one.tensor, OF_SHARDS) for node in one.segment.nodes]
    return [rows for rows in read if rows is not None]


def _is_whole(cluster: Cluster, one: Listed) -> bool:
    """Whether all replicas of a range are in sync, and none has more than it has applied."""
    nodes, states = one.segment.nodes, set[int]()
    if one.opened is None or set(one.opened.in_sync) != set(nodes) or len(nodes) != REPLICAS:
        return False
    for node in nodes:
        try:
            answer = httpx.get(f"{cluster.url(node)}/shard/ranges/{one.tensor}", headers=OF_SHARDS, trust_env=False)
        except httpx.TransportError:
            return False
        if not answer.is_success:
            return False
        states |= {answer.json()["applied"], answer.json()["last"]}
    return len(states) == 1


def _content(url: str, tensor: str, headers: dict[str, str]) -> Array | None:
    """All rows; None if they are not served there, or move elsewhere at this moment."""
    answer = httpx.get(
        f"{url}/tensors/{tensor}/content", headers={**headers, "accept": RAW}, trust_env=False, timeout=60
    )
    if answer.status_code in NOT_SERVED:
        return None
    assert answer.is_success, answer.text
    return np.frombuffer(answer.content, np.int32).reshape(-1, WIDTH)


def _check_adds(told: Told, table: Array) -> None:
    applied = [0] * RANGES
    lost, twice = [], []
    for add in told.adds:
        values = [int(table[cell]) for cell in add.cells[len(add.ranges) :]]
        if max(values) > 1:
            twice.append(add.key)
        if add.is_acknowledged and min(values) < 1:
            lost.append(add.key)
        for number, value in zip(add.ranges, values, strict=True):
            applied[number] += value
    hot = [int(table[number * RANGE_ROWS, 0]) for number in range(RANGES)]
    assert not lost, f"acknowledged and lost: {lost[:20]}"
    assert not twice, f"made twice: {twice[:20]}"
    assert hot == applied, f"the hot cells hold {hot}, and {applied} adds were made"
    assert int(table.sum()) == sum(hot) + sum(applied), "cells have changed that no add named"


def refusals(told: Told, version: str, deaths: list[tuple[float, str]]) -> list[float]:
    """Seconds from each death of a primary to the first acknowledged add of its range that was asked for later."""
    found = []
    for died, tensor in deaths:
        start = int(tensor.removeprefix(f"{version}.").partition("-")[0])
        acknowledged = told.acknowledged[start // RANGE_ROWS]
        later = [end - died for begun, end in acknowledged if begun > died or end > died + 0.5]
        if later:
            found.append(min(later))
    return found


def summary(told: Told, seconds: float, taken: list[float], say: Callable[[str], None]) -> None:
    """Say what was done, and how long ranges refused scatters."""
    acknowledged = sum(add.is_acknowledged for add in told.adds)
    say(f"{acknowledged} of {len(told.adds)} adds acknowledged ({acknowledged / seconds:.0f}/s), others: refused, lost")
    say(f"refusals: {dict(told.refusals)}")
    if told.gathers:
        p50, p99 = np.quantile(told.gathers, (0.5, 0.99)) * 1e3
        say(f"{len(told.gathers)} gathers: p50 {p50:.1f} ms, p99 {p99:.1f} ms, most {max(told.gathers):.1f} s")
    if taken:
        p50, p99 = np.quantile(taken, (0.5, 0.99))
        say(
            f"{len(taken)} ranges lost their primary and took scatters again: "
            f"p50 {p50:.2f} s, p99 {p99:.2f} s, most {max(taken):.2f} s"
        )
