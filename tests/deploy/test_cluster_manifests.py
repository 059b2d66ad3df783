"""The manifests of clusters: shards, reconciler and etcd on Kubernetes, a static map, and units of plain machines."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from typer.main import get_command

from app.cli.cluster_command import app as command
from app.cluster.catalogue.etcd import DatabaseAddress
from app.cluster.shard_map import ShardMap
from app.settings import SETTING_NAMES, Settings
from tests.deploy.kustomize import Resource, render
from tests.deploy.test_kubernetes import FOLDER, container, environment, one, pod, shape, size
from tests.for_each import for_each
from tests.http.server import ROOT

UNITS = [ROOT / f"deploy/systemd/gathernd-{name}.service" for name in ("ray", "reconciler")]
WORKLOADS = ("etcd", "shards", "reconciler")


@pytest.fixture(scope="module")
def cluster() -> list[Resource]:
    return render(FOLDER / "cluster")


def workload(cluster: list[Resource], name: str) -> dict[str, Any]:
    kind = "Deployment" if name == "reconciler" else "StatefulSet"
    spec: dict[str, Any] = one(cluster, kind, f"gathernd-{name}")["spec"]
    return spec


def containers(cluster: list[Resource], name: str) -> list[dict[str, Any]]:
    spec = workload(cluster, name)["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def options_of(name: str) -> set[str]:
    """The flags of a command of `gathernd cluster`."""
    return {flag for one in get_command(command).commands[name].params for flag in one.opts}  # type: ignore[attr-defined]


def test_every_resource_is_of_the_form_that_the_schemas_ask_for(cluster: list[Resource]) -> None:
    for resource in cluster:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@for_each("name", WORKLOADS)
def test_pods_meet_the_restricted_security_standard(cluster: list[Resource], name: str) -> None:
    given = workload(cluster, name)
    spec = given["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    volumes |= {claim["metadata"]["name"] for claim in given.get("volumeClaimTemplates", ())}
    for each in containers(cluster, name):
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {mount["name"] for mount in each["volumeMounts"]} == volumes
        assert "limits" in each["resources"]


def test_the_address_of_the_catalogue_is_that_of_the_members_of_etcd(cluster: list[Resource]) -> None:
    address = one(cluster, "ConfigMap", "gathernd-cluster")["data"]["catalogue"]
    etcd = workload(cluster, "etcd")
    (main,) = containers(cluster, "etcd")
    there = [f"gathernd-etcd-{number}.{etcd['serviceName']}" for number in range(etcd["replicas"])]
    port = next(one["containerPort"] for one in main["ports"] if one["name"] == "client")
    assert DatabaseAddress.parse(address).endpoints == tuple(f"http://{name}:{port}" for name in there)
    (members,) = [one for one in main["args"] if one.startswith("--initial-cluster=")]
    assert re.findall(r"//([^:]+):2380", members) == there


def test_all_pods_know_the_catalogue(cluster: list[Resource], tmp_path: Path) -> None:
    routers = shape("stateless", "cluster-router", tmp_path=tmp_path)
    for each in (*containers(cluster, "shards"), *containers(cluster, "reconciler"), container(routers)):
        given = environment(each)
        assert set(given) <= set(SETTING_NAMES)
        assert given["GATHERND_CLUSTER"] == {"configMapKeyRef": {"name": "gathernd-cluster", "key": "catalogue"}}


def test_shards_register_under_their_pods_names_and_fit_their_volumes(cluster: list[Resource]) -> None:
    shards = workload(cluster, "shards")
    (main,) = containers(cluster, "shards")
    given = environment(main)
    assert given["GATHERND_NODE"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    port = main["ports"][0]["containerPort"]
    assert given["GATHERND_ADVERTISE"] == f"$(GATHERND_NODE).{shards['serviceName']}:{port}"
    assert list(given).index("GATHERND_NODE") < list(given).index("GATHERND_ADVERTISE")
    (volume,) = shards["volumeClaimTemplates"]
    assert size(given["GATHERND_MAX_STORE_BYTES"]) < size(volume["spec"]["resources"]["requests"]["storage"])
    texts: dict[str, Any] = {
        name.removeprefix("GATHERND_").lower(): text for name, text in given.items() if isinstance(text, str)
    }
    texts |= {"cluster": "etcd://a:1", "node": "gathernd-shards-0", "advertise": "gathernd-shards-0.shards:8080"}
    assert Settings(**texts).shard


def test_reconcilers_are_started_with_flags_that_there_are(cluster: list[Resource]) -> None:
    first, main = containers(cluster, "reconciler")
    for each, name in ((first, "init"), (main, "reconcile")):
        assert each["command"] == ["gathernd", "cluster", name]
        assert {text.partition("=")[0] for text in each["args"]} <= options_of(name)
    assert main["args"] == [f"--metrics=0.0.0.0:{main['ports'][0]['containerPort']}"]


def test_routers_call_shards_and_etcd_and_are_let_in(cluster: list[Resource], tmp_path: Path) -> None:
    routers = shape("stateless", "cluster-router", tmp_path=tmp_path)
    labels = one(routers, "Deployment")["spec"]["template"]["metadata"]["labels"]
    egress = one(routers, "NetworkPolicy")["spec"]["egress"]
    for name in ("shards", "etcd"):
        policy = one(cluster, "NetworkPolicy", f"gathernd-{name}")["spec"]
        own = workload(cluster, name)["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= own.items()
        (rule,) = [rule for rule in egress if rule["to"][0].get("podSelector", {}).get("matchLabels") == own]
        ports = {port["name"]: port["containerPort"] for port in containers(cluster, name)[0]["ports"]}
        (inwards,) = [rule for rule in policy["ingress"] if "ports" in rule]
        assert ports[inwards["ports"][0]["port"]] == rule["ports"][0]["port"]
        (expression,) = inwards["from"][0]["podSelector"]["matchExpressions"]
        assert labels[expression["key"]] in expression["values"]


def test_the_static_map_is_sound_and_names_pods_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "routers").mkdir()
    (tmp_path / "shards").mkdir()
    routers = shape("stateless", "cluster-map", tmp_path=tmp_path / "routers")
    shards = shape("resident", "cluster-shards", tmp_path=tmp_path / "shards")
    shard_map = ShardMap.from_json(one(routers, "ConfigMap", "gathernd-shard-map")["data"]["map.json"])
    pods = one(shards, "StatefulSet")["spec"]
    port = container(shards)["ports"][0]["containerPort"]
    there = {f"gathernd-{number}.{pods['serviceName']}.shards:{port}" for number in range(pods["replicas"])}
    assert shard_map.addresses == there
    chosen, main = environment(container(routers)), container(routers)
    mounts = {mount["mountPath"]: mount for mount in main["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(routers)["volumes"]}
    for setting, kind in (("GATHERND_CLUSTER", "configMap"), ("GATHERND_CLUSTER_KEY_FILE", "secret")):
        mount = mounts[chosen[setting].rpartition("/")[0]]
        assert "subPath" not in mount
        assert kind in volumes[mount["name"]]
    (into,) = [
        rule["to"] for rule in one(routers, "NetworkPolicy")["spec"]["egress"] if rule["ports"][0]["port"] == port
    ]
    labels = pods["template"]["metadata"]["labels"]
    assert into[0]["podSelector"]["matchLabels"].items() <= labels.items()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs the Debian package systemd")
def test_systemd_accepts_the_units_without_a_remark(tmp_path: Path) -> None:
    for unit in UNITS:
        path = tmp_path / unit.name
        path.write_text(re.sub(r"/opt/gathernd/bin/(ray|gathernd)", sys.executable, unit.read_text()))
        done = subprocess.run(
            ["systemd-analyze", "--no-pager", "verify", "--man=no", path],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@for_each("unit", UNITS)
def test_the_units_name_settings_and_flags_that_there_are(unit: Path) -> None:
    found = unit.read_text()
    assert set(re.findall(r"\bGATHERND_[A-Z_]+", found)) <= set(SETTING_NAMES)
    lines = re.findall(r"bin/gathernd cluster (.*)", found)
    assert lines
    for line in lines:
        name, *words = shlex.split(line)
        assert {word for word in words if word.startswith("--")} <= options_of(name)
