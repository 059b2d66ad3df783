"""Databases: `make test` runs each test against etcd, or the stand-in on machines without it, `make test-all` both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.cluster.catalogue.etcd import Database, DatabaseAddress
from tests.cluster.databases import KINDS, RunningDatabase, installed, running_database
from tests.conftest import slow_but_for
from tests.needs import skip_without


@pytest.fixture(scope="module", params=slow_but_for((installed(),), KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """One of KINDS."""
    if request.param == "etcd":
        skip_without(etcd="etcd-server")
    return str(request.param)


@pytest.fixture(scope="module")
def running(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDatabase]:
    """The database that the tests of a module share."""
    with running_database(tmp_path_factory.mktemp("database"), kind) as found:
        yield found


@pytest.fixture
def database(running: RunningDatabase, request: pytest.FixtureRequest) -> Iterator[Database]:
    """With a prefix of its own."""
    found = Database(DatabaseAddress((running.url,), request.node.name), lease_seconds=1)
    yield found
    found.close()
