"""Who may answer a read."""

from __future__ import annotations

from dataclasses import replace

from app.cluster.replication.reads import READ_LEASE_S, Read, Readable, judge_read

REPLICA = Readable(is_in_sync=True, confirmed=100.0, applied=7)


def test_a_replica_in_sync_serves_until_its_lease_ends() -> None:
    assert judge_read(REPLICA, 100.0 + READ_LEASE_S - 0.1) is Read.SERVED
    assert judge_read(REPLICA, 100.0 + READ_LEASE_S) is Read.CUT_OFF
    assert judge_read(replace(REPLICA, is_in_sync=False), 100.0) is Read.NOT_IN_SYNC


def test_a_connection_does_not_go_back() -> None:
    assert judge_read(REPLICA, 101.0, least=7) is Read.SERVED
    assert judge_read(REPLICA, 101.0, least=8) is Read.BEHIND


def test_a_tail_that_may_have_been_acknowledged_long_ago_ends_reads() -> None:
    with_tail = replace(REPLICA, confirmed=120.0, tail_since=110.0)
    assert judge_read(with_tail, 110.0 + READ_LEASE_S - 0.1) is Read.SERVED
    assert judge_read(with_tail, 110.0 + READ_LEASE_S) is Read.UNSETTLED


def test_rows_that_may_hold_parts_of_a_tail_after_a_start_are_not_read() -> None:
    assert judge_read(replace(REPLICA, tail_since=float("-inf")), 100.0) is Read.UNSETTLED
