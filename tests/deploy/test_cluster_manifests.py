"""The manifests of clusters: KubeRay's RayCluster, the static map of a StatefulSet, and the unit of plain machines."""

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
from jsonschema import Draft202012Validator
from typer.main import get_command

from app.cli.cluster_command import app as command
from app.cluster.shard_map import ShardMap
from app.settings import SETTING_NAMES
from tests.deploy import kustomize
from tests.deploy.kustomize import Resource, render
from tests.deploy.test_kubernetes import ANY, FOLDER, closed, container, environment, one, pod, shape, size, text
from tests.http.server import ROOT

UNIT = ROOT / "deploy/systemd/gathernd-ray.service"
TEMPLATE: dict[str, Any] = {"type": "object", "required": ["metadata", "spec"]}
START = {"type": "object", "additionalProperties": text()}
# The members of KubeRay's RayCluster that the manifest uses, as its custom resource definition has them.
RAY_CLUSTER = closed(
    ["headGroupSpec"],
    rayVersion=text(),
    gcsFaultToleranceOptions=closed(["redisAddress"], redisAddress=text(), redisPassword=ANY),
    headGroupSpec=closed(["template"], rayStartParams=START, template=TEMPLATE),
    workerGroupSpecs={
        "type": "array",
        "items": closed(
            ["groupName", "template"],
            groupName=text(),
            replicas={"type": "integer"},
            minReplicas={"type": "integer"},
            maxReplicas={"type": "integer"},
            rayStartParams=START,
            template=TEMPLATE,
        ),
    },
)


@pytest.fixture(scope="module")
def ray() -> list[Resource]:
    return render(FOLDER / "ray")


def templates(resources: list[Resource]) -> list[dict[str, Any]]:
    spec = one(resources, "RayCluster", "gathernd-cluster")["spec"]
    return [spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])]


def test_the_ray_cluster_is_of_the_form_that_kuberay_asks_for(ray: list[Resource]) -> None:
    cluster = one(ray, "RayCluster", "gathernd-cluster")
    assert cluster["apiVersion"] == "ray.io/v1"
    Draft202012Validator(RAY_CLUSTER).validate(cluster["spec"])
    wrapped = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "one"}, "template": template}
        for template in templates(ray)
    ]
    for resource in [*wrapped, *(item for item in ray if item["kind"] != "RayCluster")]:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_ray_in_the_image_is_the_one_that_the_manifest_names(ray: list[Resource]) -> None:
    version = one(ray, "RayCluster", "gathernd-cluster")["spec"]["rayVersion"]
    assert f"\nray=={version} " in (ROOT / "requirements-cluster.lock").read_text()


def test_pods_of_the_ray_cluster_meet_the_restricted_security_standard(ray: list[Resource]) -> None:
    job = one(ray, "Job", "gathernd-cluster-start")["spec"]["template"]
    for template in [*templates(ray), job]:
        spec = template["spec"]
        (main,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert main["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert main["image"].startswith("gathernd:")
        mounts = {mount["mountPath"] for mount in main["volumeMounts"]}
        assert "/tmp" in mounts
        assert {mount["name"] for mount in main["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_shards_run_at_the_niceness_of_any_program(ray: list[Resource]) -> None:
    """Ray starts its workers at 15 otherwise."""
    for template in templates(ray):
        (main,) = template["spec"]["containers"]
        assert {"name": "RAY_worker_niceness", "value": "0"} in main["env"]
    assert re.search(r"^Environment=.*\bRAY_worker_niceness=0\b", UNIT.read_text(), re.MULTILINE)


def test_shards_are_started_with_flags_that_there_are_in_a_folder_that_is_a_volume(ray: list[Resource]) -> None:
    (main,) = one(ray, "Job", "gathernd-cluster-start")["spec"]["template"]["spec"]["containers"]
    assert main["command"] == ["gathernd", "cluster", "start"]
    given = dict(argument.removeprefix("--").split("=", 1) for argument in main["args"])
    options = {name for one in get_command(command).commands["start"].params for name in one.opts}  # type: ignore[attr-defined]
    assert {f"--{name}" for name in given} <= options
    shards = templates(ray)[1]["spec"]
    mounts = {mount["mountPath"]: mount["name"] for mount in shards["containers"][0]["volumeMounts"]}
    (volume,) = [volume for volume in shards["volumes"] if volume["name"] == mounts[given["data-dir"]]]
    asked = volume["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"]
    assert int(given["shard-bytes"]) < size(asked)
    assert given["ray"] == f"ray://{one(ray, 'RayCluster', 'gathernd-cluster')['metadata']['name']}-head-svc:10001"


def test_routers_of_the_ray_cluster_call_it_and_are_let_in(ray: list[Resource], tmp_path: Path) -> None:
    routers = shape("stateless", "cluster-ray", tmp_path=tmp_path)
    chosen = environment(container(routers))
    assert set(chosen) <= set(SETTING_NAMES)
    name = one(ray, "RayCluster", "gathernd-cluster")["metadata"]["name"]
    assert chosen["GATHERND_CLUSTER"] == f"ray://{name}-head-svc:10001"
    labels = one(routers, "Deployment")["spec"]["template"]["metadata"]["labels"]
    policy = one(ray, "NetworkPolicy", "gathernd-cluster")["spec"]
    assert any(
        peer.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels.items()
        for peer in policy["ingress"][0]["from"]
    )
    for template in templates(ray):
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    out = one(routers, "NetworkPolicy")["spec"]["egress"][0]["to"][0]
    assert out == {"podSelector": {"matchLabels": {"ray.io/cluster": name}}}


def test_routers_of_the_ray_cluster_have_room_for_what_they_write_to_their_disk_first(tmp_path: Path) -> None:
    """Strings and arrays in column-major order: `stateless` by itself has no room for any tensor."""
    routers = shape("stateless", "cluster-ray", tmp_path=tmp_path)
    room = size(environment(container(routers))["GATHERND_MAX_STORE_BYTES"])
    volumes = {volume["name"]: volume for volume in pod(routers)["volumes"]}
    assert 1 << 30 <= room < size(volumes["store"]["emptyDir"]["sizeLimit"])


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
def test_systemd_accepts_the_unit_of_ray_without_a_remark(tmp_path: Path) -> None:
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/gathernd/bin/ray", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "--no-pager", "verify", "--man=no", path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_of_ray_names_files_and_flags_that_there_are() -> None:
    found = UNIT.read_text()
    for name in re.findall(r"deploy/systemd/\S+\.service|requirements[a-z-]*\.lock", found):
        assert (ROOT / name).exists(), name
    (line,) = re.findall(r"bin/gathernd (cluster start .*)", found)
    options = {name for one in get_command(command).commands["start"].params for name in one.opts}  # type: ignore[attr-defined]
    assert {word for word in shlex.split(line) if word.startswith("--")} <= options


def test_every_file_of_ray_is_rendered() -> None:
    named = set(kustomize.read(FOLDER / "ray/kustomization.yaml")[0]["resources"])
    assert {path.name for path in (FOLDER / "ray").glob("*.yaml")} - {"kustomization.yaml"} == named
