"""Rules and dashboard against the metrics that a running service has, judged by Prometheus's promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.api.route_rows.operation import Plane
from app.api.route_table import ROUTES
from app.cluster.reconciler.metrics import SERIES as RECONCILER_SERIES
from tests.http.server import ROOT, serving

RULES = sorted((ROOT / "deploy/prometheus").glob("*.yml"))
UNIT_TESTS = sorted((ROOT / "tests/deploy").glob("*alerts.test.yml"))
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/gathernd.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
PROMETHEUS = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text()) for path in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def names_in(expression: str) -> set[str]:
    """The names of this service's series in a PromQL expression, recorded ones included."""
    without_strings = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"(?:\b[A-Za-z_:]*gathernd|\bprocess)_[A-Za-z0-9_:]+", without_strings))


@pytest.fixture(scope="module")
def scraped(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What a running service says on /metrics."""
    tensor = {"dtype": "float32", "shape": [2], "values": [1, 2]}
    indices = {"dtype": "int64", "shape": [1, 1], "values": [1]}
    with serving(warmed, tmp_path_factory.mktemp("monitored")) as server:
        client = server.shared_client()
        for body, status in (({"data": tensor, "indices": indices}, 200), ({"data": tensor}, 422)):
            assert client.post("/gathernd", json=body).status_code == status
        yield client.get("/metrics").text


def series_of(text: str) -> set[str]:
    """Every name that a series of this service can have; the types are listed before there is any value."""
    found = set()
    for family in text_string_to_metric_families(text):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found


def test_rules_and_dashboard_name_only_series_that_there_are(scraped: str) -> None:
    known = series_of(scraped) | RECORDED | RECONCILER_SERIES
    expressions = [rule["expr"] for rule in rules()] + EXPRESSIONS
    expressions += [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    assert all(names_in(expression) for expression in expressions if "up{" not in expression)
    missing = {name: expression for expression in expressions for name in names_in(expression) if name not in known}
    assert missing == {}


def test_work_in_rules_and_dashboard_is_every_route_that_gathers_or_keeps_tensors() -> None:
    expressions = [rule["expr"] for rule in rules()] + EXPRESSIONS
    patterns = {found for expression in expressions for found in re.findall(r'path=~"([^"]+)"', expression)}
    gathers = {route.template for route in ROUTES if route.plane is Plane.GATHER}
    work = gathers | {route.template for route in ROUTES if route.plane is Plane.TENSORS}
    assert len(patterns) == 2
    for pattern in patterns:
        matched = {route.template for route in ROUTES if re.fullmatch(pattern, route.template)}
        assert matched == (work if "imports" in pattern else gathers)


@PROMETHEUS
def test_promtool_accepts_the_rules_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    queries = []
    for number, expression in enumerate(EXPRESSIONS):
        query = expression.replace("$__rate_interval", "1m").replace("$job", "gathernd").replace("$instance", ".*")
        queries.append({"record": f"panel:query:{number}", "expr": query})
    dashboard = tmp_path / "dashboard.yml"
    dashboard.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": queries}]}))
    command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES), str(dashboard)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@PROMETHEUS
@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    command = ["promtool", "test", "rules", *map(str, UNIT_TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@PROMETHEUS
def test_promtool_accepts_what_the_service_says(scraped: str) -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(
        command, input=scraped, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
