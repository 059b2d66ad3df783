"""The Helm chart makes the manifests of deploy/kubernetes, and what its values change.

Helm comes in no package that the tests install. Its templates are Go's: a small program renders them with the few
functions of Helm that the chart uses.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator

import app
from app.settings import SETTING_NAMES
from tests.deploy import kustomize
from tests.deploy.kustomize import Resource
from tests.needs import ROOT, skip_without

CHART = ROOT / "deploy/helm/gathernd"
STATELESS = {"shape": "stateless", "memory": "2Gi"}
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
pytestmark = pytest.mark.slow


def values(**changed: Any) -> dict[str, Any]:
    """The chart's values with some changed, as `helm install --set` changes them."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, value in changed.items():
        found[name] = {**found[name], **value} if isinstance(value, dict) else value
    return found


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without(go="golang-go")
    folder = tmp_path_factory.mktemp("helm")
    own = {"HOME": str(folder), "GOCACHE": str(folder / "cache"), "GOPROXY": "off", "GO111MODULE": "off"}
    command = ["go", "build", "-o", str(folder / "render"), str(ROOT / "tests/deploy/helm/render.go")]
    subprocess.run(command, check=True, cwd=folder, env={**os.environ, **own}, timeout=300)
    return folder / "render"


def render(renderer: Path, **changed: Any) -> list[Resource]:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    data = {"Values": values(**changed), "Chart": {"AppVersion": chart["appVersion"]}, "Release": {"Name": "gathernd"}}
    assert Draft7Validator(SCHEMA).is_valid(data["Values"])
    done = subprocess.run(
        [renderer, CHART / "templates"], input=json.dumps(data), capture_output=True, text=True, check=True, timeout=60
    )
    return [found for found in yaml.safe_load_all(done.stdout) if found is not None]


def by_name(resources: list[Resource]) -> dict[str, Resource]:
    return {f"{found['kind']}/{found['metadata']['name']}": found for found in resources}


@pytest.mark.parametrize("changed", [{}, STATELESS], ids=["resident", "stateless"])
def test_a_chart_with_its_own_values_is_what_kustomize_makes(renderer: Path, changed: dict[str, Any]) -> None:
    made = by_name(render(renderer, **changed))
    assert made == by_name(kustomize.render(ROOT / "deploy/kubernetes" / changed.get("shape", "resident")))
    for resource in made.values():
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_values_reach_the_manifests(renderer: Path) -> None:
    made = by_name(
        render(
            renderer,
            image={"repository": "registry.example.com/gathernd", "tag": "next", "pullPolicy": "Always"},
            cpu="4",
            memory="16Gi",
            replicas=3,
            keysSecret="own",
            storage={"size": "1Ti", "className": "fast", "limit": "600GiB", "largestUpload": "300GiB"},
            settings={"GATHERND_LOG_FORMAT": "json", "GATHERND_MAX_REQUESTS": "64"},
        )
    )
    workload = made["StatefulSet/gathernd"]["spec"]
    pod = workload["template"]["spec"]
    (main,) = pod["containers"]
    assert workload["replicas"] == 3
    assert (main["image"], main["imagePullPolicy"]) == ("registry.example.com/gathernd:next", "Always")
    assert main["resources"] == {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "16Gi"}}
    environment = {item["name"]: item.get("value") for item in main["env"]}
    assert set(environment) <= set(SETTING_NAMES)
    assert environment["GATHERND_MAX_STORE_BYTES"] == "600GiB"
    assert environment["GATHERND_LOG_FORMAT"] == "json"
    assert environment["GATHERND_MAX_REQUESTS"] == "64"
    (claim,) = workload["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Ti"
    assert {"secretName": "own", "defaultMode": 0o440} in [volume.get("secret") for volume in pod["volumes"]]
    for resource in made.values():
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    "changed", [{"shapes": "resident"}, {"shape": "both"}, {"settings": {"LOG_FORMAT": "json"}}, {"cpu": "500m"}]
)
def test_a_wrong_value_is_refused(changed: dict[str, Any]) -> None:
    assert not Draft7Validator(SCHEMA).is_valid(values() | changed)


def test_the_chart_has_the_version_of_the_service() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (app.__version__, app.__version__)
