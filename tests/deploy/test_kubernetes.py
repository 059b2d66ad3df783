"""The Kubernetes manifests as they are rendered: of the schemas' form, safe, and in step with the service."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from pydantic import ByteSize, TypeAdapter

import app
from app.settings import SETTING_NAMES
from app.telemetry.metric_definitions import GAUGES
from tests.deploy import kustomize
from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.kustomize import Resource, render
from tests.for_each import for_each
from tests.http.server import ROOT

FOLDER = ROOT / "deploy/kubernetes"
SHAPES = ["stateless", "resident"]
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())
KSERVE = sorted((FOLDER / "kserve").glob("[is]*.yaml"))
# Kinds that are no part of Kubernetes, whose schemas are with their projects.
FOREIGN = {"ServingRuntime", "InferenceService", "ServiceMonitor", "RayCluster"}
IMAGE = read_dockerfile()["cpu"]


def shape(name: str, *components: str, tmp_path: Path | None = None) -> list[Resource]:
    """A rendered shape, with components as the README shows it."""
    if not components:
        return render(FOLDER / name)
    assert tmp_path is not None
    return render(overlay(tmp_path, name, components))


def overlay(folder: Path, name: str, components: tuple[str, ...]) -> Path:
    parts = {part: os.path.relpath(FOLDER / part, folder) for part in (name, *(f"components/{c}" for c in components))}
    config = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [parts.pop(name)],
        "components": list(parts.values()),
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(config))
    return folder


def one(resources: list[Resource], kind: str, name: str = "gathernd") -> Resource:
    (found,) = [item for item in resources if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return found


def workload(resources: list[Resource]) -> Resource:
    (found,) = [item for item in resources if item["kind"] in {"Deployment", "StatefulSet"}]
    return found


def pod(resources: list[Resource]) -> dict[str, Any]:
    spec: dict[str, Any] = workload(resources)["spec"]["template"]["spec"]
    return spec


def container(resources: list[Resource]) -> dict[str, Any]:
    (found,) = pod(resources)["containers"]
    assert isinstance(found, dict)
    return found


def environment(of: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in of.get("env", ())}


def size(text: str) -> int:
    """Bytes of a quantity of Kubernetes or of a setting."""
    return int(TypeAdapter(ByteSize).validate_python(re.sub(r"i$", "iB", text)))


def validate(resource: Resource) -> None:
    if resource["kind"] not in FOREIGN:
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("components", [(), tuple(COMPONENTS)], ids=["alone", "components"])
def test_every_resource_is_of_the_form_that_the_schemas_ask_for(
    name: str, components: tuple[str, ...], tmp_path: Path
) -> None:
    for resource in shape(name, *components, tmp_path=tmp_path):
        validate(resource)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize(("name", "components"), [("stateless", ()), ("resident", tuple(COMPONENTS))])
def test_kustomize_makes_what_is_rendered_here(name: str, components: tuple[str, ...], tmp_path: Path) -> None:
    folder = overlay(tmp_path, name, components) if components else FOLDER / name
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    made, rendered = (
        {f"{item['kind']}/{item['metadata']['name']}": item for item in resources}
        for resources in (yaml.safe_load_all(done.stdout), render(folder))
    )
    assert made == rendered


def kserve(kind: str) -> list[Resource]:
    found = [item for path in KSERVE for item in kustomize.read(path) if item["kind"] == kind]
    assert found
    return found


def merged(service: Resource) -> dict[str, Any]:
    """The pod that KServe makes of the runtime and an InferenceService."""
    (runtime,) = kserve("ServingRuntime")
    predictor = json.loads(json.dumps(service["spec"]["predictor"]))
    model = predictor.pop("model")
    (main,) = json.loads(json.dumps(runtime["spec"]["containers"]))
    for member in ("env", "resources", "volumeMounts"):
        kustomize.merge(main, {member: model[member]} if member in model else {})
    volumes = runtime["spec"]["volumes"] + predictor.get("volumes", [])
    kept = ("enableServiceLinks", "terminationGracePeriodSeconds", "securityContext")
    return {**{name: predictor[name] for name in kept}, "containers": [main], "volumes": volumes}


def pods() -> dict[str, tuple[dict[str, Any], set[str]]]:
    """Every pod of the service, with the volumes that are claimed for it."""
    found = {}
    for name in SHAPES:
        claims = workload(shape(name))["spec"].get("volumeClaimTemplates", ())
        found[name] = pod(shape(name)), {claim["metadata"]["name"] for claim in claims}
    for service in kserve("InferenceService"):
        found[f"kserve {service['metadata']['name']}"] = merged(service), set()
    return found


PODS = pods()


@for_each("name", PODS)
def test_pods_meet_the_restricted_security_standard(name: str) -> None:
    spec, _ = PODS[name]
    (main,) = spec["containers"]
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gathernd"}, "spec": spec})
    context = spec["securityContext"] | main["securityContext"]
    assert context["runAsNonRoot"] is context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    if name in SHAPES:
        assert spec["automountServiceAccountToken"] is False


@for_each("name", PODS)
def test_pod_fits_the_image_and_its_settings(name: str) -> None:
    spec, claims = PODS[name]
    (main,) = spec["containers"]
    context, chosen = spec["securityContext"] | main["securityContext"], environment(main)
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == IMAGE.arguments("USER")[0]
    assert str(main["ports"][0]["containerPort"]) == IMAGE.environment()["GATHERND_PORT"] == chosen["GATHERND_PORT"]
    assert context["fsGroup"] == context["runAsGroup"]
    assert main["image"] == f"gathernd:{app.__version__}"
    # Everything that the service writes to is a volume, and so is /tmp, since the rest is read-only.
    mounts = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
    assert {*json.loads(IMAGE.arguments("VOLUME")[0]), "/tmp"} <= set(mounts)
    assert chosen.get("GATHERND_STORE_DIR", "/var/lib/gathernd") in mounts
    volumes = [volume["name"] for volume in spec["volumes"]]
    assert len(set(volumes)) == len(volumes)  # KServe merges two of one name
    assert set(mounts.values()) == {*volumes} | claims
    assert set(chosen) <= set(SETTING_NAMES)
    # The Service `gathernd` would make Kubernetes set GATHERND_PORT to tcp://ADDRESS:80.
    assert spec["enableServiceLinks"] is False
    drain = float(chosen["GATHERND_DRAIN_DELAY"]) + float(chosen["GATHERND_DRAIN_TIMEOUT"])
    assert spec["terminationGracePeriodSeconds"] >= drain + 10
    probe = main["readinessProbe"]
    assert float(chosen["GATHERND_DRAIN_DELAY"]) > probe["periodSeconds"] * probe["failureThreshold"]


@pytest.mark.parametrize("name", SHAPES)
def test_keys_are_asked_for_and_come_from_a_secret_that_may_change(name: str) -> None:
    resources = shape(name)
    main = container(resources)
    (mount,) = [mount for mount in main["volumeMounts"] if mount["name"] == "keys"]
    assert environment(main)["GATHERND_API_KEYS_FILE"].rpartition("/")[0] == mount["mountPath"]
    assert mount["readOnly"] is True
    assert "subPath" not in mount
    (volume,) = [volume for volume in pod(resources)["volumes"] if volume["name"] == "keys"]
    # Readable by the group, which is the service's, and by nobody else.
    assert volume["secret"] == {"secretName": "gathernd-api-keys", "defaultMode": 0o440}


@pytest.mark.parametrize("name", SHAPES)
def test_selectors_choose_the_pods_and_ports_have_names_that_there_are(name: str) -> None:
    resources = shape(name)
    labels = workload(resources)["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"] for port in container(resources)["ports"]}
    assert workload(resources)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    for resource in resources:
        spec = resource.get("spec", {})
        if resource["kind"] == "Service":
            assert spec["selector"].items() <= labels.items()
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        elif resource["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"].items() <= labels.items()
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} <= ports
            assert spec["egress"] == []
        elif resource["kind"] == "PodDisruptionBudget":
            assert spec["selector"]["matchLabels"].items() <= labels.items()
            # A budget of minAvailable 1 would keep the node of a single replica from ever being drained.
            assert spec["maxUnavailable"] == 1


def test_autoscaler_reads_a_metric_of_the_service_that_the_adapter_offers() -> None:
    resources = shape("stateless")
    assert "replicas" not in workload(resources)["spec"]
    assert environment(container(resources))["GATHERND_MAX_STORE_BYTES"] == "1"  # less than any tensor takes
    scaler = one(resources, "HorizontalPodAutoscaler")["spec"]
    (metric,) = [item["pods"]["metric"]["name"] for item in scaler["metrics"] if item["type"] == "Pods"]
    (rule,) = yaml.safe_load((FOLDER / "stateless/prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["matches"] == metric
    assert metric in GAUGES


def seconds_until_failure(probe: dict[str, Any]) -> int:
    """Seconds that a probe may fail before it counts."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def test_a_store_that_is_put_in_order_first_is_waited_for() -> None:
    """The log of a store that was killed is carried out before the first answer, at the speed of the disk."""
    (runtime,) = kserve("ServingRuntime")
    for main in (*(container(shape(name)) for name in SHAPES), runtime["spec"]["containers"][0]):
        assert seconds_until_failure(main["startupProbe"]) >= 1800
        # Once it has started, a pod that hangs is found out soon.
        assert seconds_until_failure(main["livenessProbe"]) <= 60
    assert "--start-period=30m" in IMAGE.arguments("HEALTHCHECK")[0]


@pytest.mark.parametrize("name", SHAPES)
def test_traces_reach_the_collector_that_is_named_and_nothing_else_goes_out(name: str, tmp_path: Path) -> None:
    assert one(shape(name), "NetworkPolicy")["spec"]["egress"] == []
    resources = shape(name, "tracing", tmp_path=tmp_path)
    endpoint = urlsplit(environment(container(resources))["GATHERND_OTLP_ENDPOINT"])
    collector, names = one(resources, "NetworkPolicy")["spec"]["egress"]
    assert collector["ports"] == [{"port": endpoint.port, "protocol": "TCP"}]
    (peer,) = collector["to"]
    assert endpoint.hostname is not None
    # The name of a Service is SERVICE.NAMESPACE, and both selectors of one entry must fit.
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": endpoint.hostname.split(".")[1]}
    assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}


def test_volume_holds_the_store_and_one_upload_beside_it() -> None:
    resources = shape("resident")
    chosen = environment(container(resources))
    (claim,) = workload(resources)["spec"]["volumeClaimTemplates"]
    asked = size(claim["spec"]["resources"]["requests"]["storage"])
    assert size(chosen["GATHERND_MAX_STORE_BYTES"]) + size(chosen["GATHERND_MAX_UPLOAD_BYTES"]) <= asked
    kept = workload(resources)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}
