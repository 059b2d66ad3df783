"""Rules and dashboard against the metrics that a running service has, with the real Prometheus where it is at hand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from app.api.route_rows.operation import Plane
from app.api.route_table import ROUTES
from app.cluster.reconciler.metrics import SERIES as RECONCILER_SERIES
from tests.free_port import free_port
from tests.http.server import ROOT, Server, serving

RULES = sorted((ROOT / "deploy/prometheus").glob("*.yml"))
UNIT_TESTS = sorted((ROOT / "tests/deploy").glob("*alerts.test.yml"))
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/gathernd.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]
# Without a second process and without a busy pool there is nothing to show in these.
# Nor is there anything to show of a certificate, without TLS, or of shards and reconcilers, without a cluster.
QUIET = {
    "Workers started and died",
    "Calls of gRPC by method and status",
    "Gathers that the GPU left to the CPU",
    "Time left to the certificate",
    "Requests to shards by outcome",
    "Time of requests to shards",
    "Scatters to ranges by outcome",
    "Ranges of shards that take scatters",
    "Replicas that left, joined and were copied",
    "Lag of replicas and age of the catalogue",
    "Segments short of replicas",
    "Reconcilers in office and shards that run",
    "Copies of segments",
    "What the reconciler has done",
    "Shards by the share of their bytes that is taken",
}
PROMETHEUS = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")


def rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text()) for path in RULES]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def names_in(expression: str) -> set[str]:
    """The names of this service's series in a PromQL expression, recorded ones included."""
    without_strings = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"(?:\b[A-Za-z_:]*gathernd|\bprocess)_[A-Za-z0-9_:]+", without_strings))


@dataclass
class Scraped:
    """A running service that has had some traffic, and what it says on /metrics."""

    server: Server
    text: str

    def names(self) -> set[str]:
        """Every name that a series of this service can have; the types are listed before there is any value."""
        found = set()
        for family in text_string_to_metric_families(self.text):
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
            found |= {family.name + suffix for suffix in suffixes}
        return found


@pytest.fixture(scope="module")
def scraped(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    with serving(warmed, tmp_path_factory.mktemp("monitored")) as server:
        traffic(server)
        yield Scraped(server, server.shared_client().get("/metrics").text)


def traffic(server: Server) -> None:
    """One request of each kind that panels and rules tell apart."""
    client = server.shared_client()
    tensor = {"dtype": "float32", "shape": [2], "values": [1, 2]}
    indices = {"dtype": "int64", "shape": [1, 1], "values": [1]}
    inputs = [
        {"name": "data", "datatype": "FP32", "shape": [2], "data": [1, 2]},
        {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
    assert client.post("/gathernd", json={"data": tensor, "indices": indices}).status_code == 200
    assert client.post("/gather", json={"data": tensor, "indices": indices}).status_code == 200
    assert client.post("/gathernd", json={"data": tensor}).status_code == 422
    assert httpx.post(f"{server.url}/v2/models/gathernd/infer", json={"inputs": inputs}, timeout=60).status_code == 200
    late = client.post("/gathernd", json={"data": tensor, "indices": indices}, headers=LATE)
    assert late.json()["code"] == "deadline_exceeded"
    uploaded = client.put("/tensors/t?dtype=uint8&shape=2", content=b"ab", headers={"content-type": OCTETS})
    assert uploaded.status_code == 201
    assert client.post("/gathernd", json={"data": {"tensor": "t"}, "indices": indices}).status_code == 200
    assert client.post("/lookup", json={"features": [{"tensor": "t", "indices": indices}]}).status_code == 200


OCTETS = "application/octet-stream"
LATE = {"x-gathernd-timeout": "0"}


def test_rules_and_dashboard_name_only_series_that_there_are(scraped: Scraped) -> None:
    known = scraped.names() | RECORDED | RECONCILER_SERIES
    expressions = [rule["expr"] for rule in rules()] + [expression for _, expression, _ in TARGETS]
    expressions += [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    assert all(names_in(expression) for expression in expressions if "up{" not in expression)
    missing = {name: expression for expression in expressions for name in names_in(expression) if name not in known}
    assert missing == {}


def test_work_in_rules_and_dashboard_is_every_route_that_gathers_or_keeps_tensors() -> None:
    expressions = [rule["expr"] for rule in rules()] + [expression for _, expression, _ in TARGETS]
    patterns = {found for expression in expressions for found in re.findall(r'path=~"([^"]+)"', expression)}
    gathers = {route.template for route in ROUTES if route.plane is Plane.GATHER}
    work = gathers | {route.template for route in ROUTES if route.plane is Plane.TENSORS}
    assert len(patterns) == 2
    for pattern in patterns:
        matched = {route.template for route in ROUTES if re.fullmatch(pattern, route.template)}
        assert matched == (work if "imports" in pattern else gathers)


def test_settings_that_alerts_name_exist() -> None:
    known = (ROOT / "docs/reference/settings.md").read_text()
    texts = " ".join(path.read_text() for path in RULES)
    for name in set(re.findall(r"GATHERND_[A-Z_]+", texts)):
        assert f"`{name}`" in known, name


@PROMETHEUS
def test_promtool_accepts_the_rules_without_a_remark() -> None:
    command = ["promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(str, RULES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@PROMETHEUS
@pytest.mark.slow
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    command = ["promtool", "test", "rules", *map(str, UNIT_TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@PROMETHEUS
def test_promtool_accepts_what_the_service_says(scraped: Scraped) -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(
        command, input=scraped.text, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def prometheus_config(target: str) -> dict[str, Any]:
    """The configuration of the compose file, for a service elsewhere, scraped and judged every moment."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [
        path.replace("/etc/prometheus/rules", str(RULES[0].parent)) for path in config["rule_files"]
    ]
    for job in config["scrape_configs"]:
        job["scrape_timeout"] = "200ms"
        job["static_configs"] = [{"targets": [target]}]
    return config


@dataclass
class Prometheus:
    """A running Prometheus."""

    url: str

    def query(self, expression: str) -> Any:
        """The answer's data; fails on an expression that is none."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, trust_env=False, timeout=60).json()
        assert answer["status"] == "success", (expression, answer)
        return answer["data"]["result"]

    def rules(self) -> list[dict[str, Any]]:
        data = httpx.get(f"{self.url}/api/v1/rules", trust_env=False, timeout=60).json()["data"]
        return [rule for group in data["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def prometheus(scraped: Scraped, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(json.dumps(prometheus_config(f"127.0.0.1:{scraped.server.port}")))
    port = free_port()
    log = folder / "log.txt"
    flags = [f"--web.listen-address=127.0.0.1:{port}", f"--config.file={folder}/prometheus.yml"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["prometheus", *flags, f"--storage.tsdb.path={folder}/data"], stdout=file, stderr=file, cwd=folder
        )
    running = Prometheus(f"http://127.0.0.1:{port}")
    try:
        end = monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert monotonic() < end, log.read_text()
            try:
                ready = httpx.get(f"{running.url}/-/ready", trust_env=False, timeout=60).status_code == 200
            except httpx.TransportError:
                ready = False
            # A rate needs traffic between two scrapes, and a recorded rate a rule's round after that; what is counted
            # for the first time, as refusals by a limit, has no rate until it is counted again.
            if ready and running.query('count_over_time(up{job="gathernd"}[1m]) > 2'):
                traffic_again(scraped.server)
                recorded = running.query('job:gathernd_work_failures:ratio_rate6h{job="gathernd"} >= 0')
                if recorded and running.query('rate(gathernd_limit_refusals_total{job="gathernd"}[1m]) > 0'):
                    break
            sleep(0.1)
        yield running
    finally:
        process.terminate()
        process.wait(60)


def traffic_again(server: Server) -> None:
    indices = {"dtype": "int64", "shape": [1, 1], "values": [1]}
    call = {"data": {"dtype": "int8", "shape": [2], "values": [1, 2]}, "indices": indices}
    for data in (call["data"], {"tensor": "t"}):
        assert server.shared_client().post("/gathernd", json=call | {"data": data}).status_code == 200
    # A panel of what goes wrong shows what has just gone wrong, for a caller, for a limit and for a deadline.
    assert server.shared_client().post("/gathernd", json=call, headers=LATE).status_code == 503
    deep = {"dtype": "int8", "shape": [1] * 33, "values": [1]}
    assert server.shared_client().post("/gathernd", json=call | {"data": deep}).status_code == 422


@PROMETHEUS
def test_prometheus_loads_the_rules_and_none_fails_or_fires(prometheus: Prometheus) -> None:
    loaded = prometheus.rules()
    assert len(loaded) == len(rules())
    assert {rule["name"]: rule.get("lastError", "") for rule in loaded if rule["health"] == "err"} == {}
    assert [rule["name"] for rule in loaded if rule.get("state") == "firing"] == []


@PROMETHEUS
@pytest.mark.parametrize(("title", "expression", "legend"), TARGETS)
def test_panel_has_something_to_show(prometheus: Prometheus, title: str, expression: str, legend: str) -> None:
    for variable, value in (("$job", "gathernd"), ("$instance", ".*"), ("$__rate_interval", "1m")):
        expression = expression.replace(variable, value)
    assert "$" not in expression.replace('"$1"', "")
    end = monotonic() + 20
    # Where the last scrape took too long, what was scraped before it is out of date until the next one.
    while not (found := prometheus.query(expression)) and title not in QUIET:
        assert monotonic() < end, expression
        sleep(0.1)
    labels = set(re.findall(r"\{\{(\w+)\}\}", legend))
    assert all(labels <= set(series["metric"]) for series in found), (legend, found)
    assert len(labels) > 0 or len(found) <= 1, "several series with one legend"
