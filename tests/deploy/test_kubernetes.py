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
from jsonschema import Draft202012Validator
from pydantic import ByteSize, TypeAdapter

import app
from app.settings import SETTING_NAMES
from tests.deploy import kustomize
from tests.deploy.dockerfile import read_dockerfile
from tests.deploy.kustomize import Resource, render
from tests.http.server import ROOT, serving

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
@pytest.mark.parametrize(
    "components",
    [(), *(pytest.param((each,), marks=pytest.mark.slow) for each in COMPONENTS), tuple(COMPONENTS)],
)
def test_every_resource_is_of_the_form_that_the_schemas_ask_for(
    name: str, components: tuple[str, ...], tmp_path: Path
) -> None:
    for resource in shape(name, *components, tmp_path=tmp_path):
        validate(resource)


KUBECTL = shutil.which("kubectl")


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl, which Debian has only in versions without components")
@pytest.mark.parametrize(
    ("name", "components"), [*((name, ()) for name in SHAPES), ("kserve", ()), ("resident", tuple(COMPONENTS))]
)
def test_kustomize_makes_what_is_rendered_here(name: str, components: tuple[str, ...], tmp_path: Path) -> None:
    folder = overlay(tmp_path, name, components) if components else FOLDER / name
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

    def by_name(resources: list[Resource]) -> dict[str, Resource]:
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in resources}

    assert by_name(list(yaml.safe_load_all(done.stdout))) == by_name(render(folder))


def test_every_manifest_is_part_of_a_kustomization_or_meant_to_stand_alone() -> None:
    alone = {"prometheus-adapter.yaml", "inference-service-resident.yaml", "kustomization.yaml"}
    named = set()
    for path in FOLDER.rglob("kustomization.yaml"):
        named |= {path.parent / name for name in kustomize.read(path)[0].get("resources", ())}
    for path in FOLDER.rglob("*.yaml"):
        assert path in named or path.name in alone, path


@pytest.mark.parametrize("name", SHAPES)
def test_pods_meet_the_restricted_security_standard(name: str) -> None:
    resources = shape(name)
    spec, main = pod(resources), container(resources)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == one(resources, "ServiceAccount")["metadata"]["name"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all(set(volume) & {"emptyDir", "secret"} for volume in spec["volumes"])


@pytest.mark.parametrize("name", SHAPES)
def test_pod_fits_the_image(name: str) -> None:
    resources = shape(name)
    spec, main = pod(resources), container(resources)
    user, group = IMAGE.arguments("USER")[0].split(":")
    context = spec["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (int(user), int(group), int(group))
    (port,) = main["ports"]
    assert str(port["containerPort"]) == IMAGE.environment()["GATHERND_PORT"] == environment(main)["GATHERND_PORT"]
    # Everything that the image writes to is a volume, and so is /tmp, since the rest is read-only.
    mounts = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
    assert {*json.loads(IMAGE.arguments("VOLUME")[0]), "/tmp"} <= set(mounts)
    claims = {claim["metadata"]["name"] for claim in workload(resources)["spec"].get("volumeClaimTemplates", ())}
    assert set(mounts.values()) == {volume["name"] for volume in spec["volumes"]} | claims
    assert main["image"] == f"gathernd:{app.__version__}"


@pytest.mark.parametrize("name", SHAPES)
def test_settings_exist_and_are_not_overwritten_by_the_cluster(name: str) -> None:
    resources = shape(name)
    assert set(environment(container(resources))) <= set(SETTING_NAMES)
    # The Service `gathernd` would make Kubernetes set GATHERND_PORT to tcp://ADDRESS:80.
    assert one(resources, "Service")
    assert pod(resources)["enableServiceLinks"] is False


@pytest.mark.parametrize("name", SHAPES)
def test_a_pod_is_given_the_time_that_its_drain_takes(name: str) -> None:
    resources = shape(name)
    chosen = environment(container(resources))
    drain = float(chosen["GATHERND_DRAIN_DELAY"]) + float(chosen["GATHERND_DRAIN_TIMEOUT"])
    assert pod(resources)["terminationGracePeriodSeconds"] >= drain + 10
    probe = container(resources)["readinessProbe"]
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
    command = f"kubectl create secret generic {volume['secret']['secretName']} --from-file=api-keys.txt"
    assert command in (FOLDER / "README.md").read_text()


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


def test_autoscaler_reads_a_metric_of_the_service_that_the_adapter_offers(warmed: Path, tmp_path: Path) -> None:
    resources = shape("stateless")
    scaler = one(resources, "HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "gathernd"}
    assert "replicas" not in workload(resources)["spec"]
    (metric,) = [item["pods"]["metric"]["name"] for item in scaler["metrics"] if item["type"] == "Pods"]
    (rule,) = yaml.safe_load((FOLDER / "stateless/prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert rule["name"]["matches"] == metric
    assert rule["seriesQuery"].startswith(f"{metric}{{")
    # The stateless settings, on a service that asks for no key: even so nothing can be kept.
    flags = [f"--max-store-bytes={environment(container(resources))['GATHERND_MAX_STORE_BYTES']}"]
    with serving(warmed, tmp_path, *flags) as server:
        client = server.shared_client()
        types = {"content-type": "application/octet-stream"}
        for shape_, content in (("0", b""), ("1", b"a")):
            kept = client.put(f"/tensors/t?dtype=uint8&shape={shape_}", content=content, headers=types)
            assert (kept.status_code, kept.json()["code"]) == (507, "insufficient_storage")
        assert f"\n{metric} " in client.get("/metrics").text


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
    policy = one(resources, "NetworkPolicy")["spec"]
    assert policy["ingress"] == one(shape(name), "NetworkPolicy")["spec"]["ingress"]
    collector, names = policy["egress"]
    assert collector["ports"] == [{"port": endpoint.port, "protocol": "TCP"}]
    (peer,) = collector["to"]
    assert endpoint.hostname is not None
    # The name of a Service is SERVICE.NAMESPACE, and both selectors of one entry must fit.
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": endpoint.hostname.split(".")[1]}
    assert peer["podSelector"]["matchLabels"]
    assert {(port["port"], port["protocol"]) for port in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert all("podSelector" in peer and "namespaceSelector" in peer for peer in names["to"])


def test_volume_holds_the_store_and_one_upload_beside_it() -> None:
    resources = shape("resident")
    chosen = environment(container(resources))
    (claim,) = workload(resources)["spec"]["volumeClaimTemplates"]
    asked = size(claim["spec"]["resources"]["requests"]["storage"])
    assert size(chosen["GATHERND_MAX_STORE_BYTES"]) + size(chosen["GATHERND_MAX_UPLOAD_BYTES"]) <= asked
    kept = workload(resources)["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert kept == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_service_monitor_scrapes_every_pod_once_and_with_a_key(tmp_path: Path) -> None:
    resources = shape("resident", "service-monitor", tmp_path=tmp_path)
    spec = one(resources, "ServiceMonitor")["spec"]
    absent = {item["key"] for item in spec["selector"]["matchExpressions"] if item["operator"] == "DoesNotExist"}
    services = [item for item in resources if item["kind"] == "Service"]
    chosen = [
        service
        for service in services
        if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        and not absent & set(service["metadata"]["labels"])
    ]
    # The rules and the dashboard ask for the job that is named after this Service.
    assert [service["metadata"]["name"] for service in chosen] == ["gathernd"]
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {port["name"] for port in chosen[0]["spec"]["ports"]}
    secret = endpoint["authorization"]["credentials"]
    command = f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}="
    assert command in (FOLDER / "README.md").read_text()


def kserve(kind: str) -> list[Resource]:
    found = [item for path in KSERVE for item in kustomize.read(path) if item["kind"] == kind]
    assert found
    return found


def text(**members: Any) -> dict[str, Any]:
    return {"type": "string", **members}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


# The members of KServe's kinds that the examples use, as its custom resource definitions have them.
ANY: dict[str, Any] = {}
RUNTIME_SPEC = closed(
    ["containers"],
    annotations={"type": "object", "additionalProperties": text()},
    supportedModelFormats={
        "type": "array",
        "items": closed(["name"], name=text(), version=text(), autoSelect={"type": "boolean"}),
    },
    protocolVersions={"type": "array", "items": text()},
    multiModel={"type": "boolean"},
    containers={"type": "array", "minItems": 1},
    volumes={"type": "array"},
)
SERVICE_SPEC = closed(
    ["predictor"],
    predictor=closed(
        ["model"],
        minReplicas={"type": "integer"},
        maxReplicas={"type": "integer"},
        scaleMetric={"enum": ["cpu", "memory", "concurrency", "rps"]},
        scaleTarget={"type": "integer"},
        deploymentStrategy=closed(["type"], type={"enum": ["Recreate", "RollingUpdate"]}),
        enableServiceLinks={"type": "boolean"},
        terminationGracePeriodSeconds={"type": "integer"},
        securityContext=ANY,
        volumes={"type": "array"},
        model=closed(
            ["modelFormat"],
            runtime=text(),
            modelFormat=closed(["name"], name=text(), version=text()),
            protocolVersion={"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]},
            env=ANY,
            resources=ANY,
            volumeMounts=ANY,
        ),
    ),
)


def test_kserve_kinds_are_of_the_form_that_kserve_asks_for() -> None:
    for kind, version, schema in (
        ("ServingRuntime", "v1alpha1", RUNTIME_SPEC),
        ("InferenceService", "v1beta1", SERVICE_SPEC),
    ):
        for resource in kserve(kind):
            assert resource["apiVersion"] == f"serving.kserve.io/{version}"
            assert set(resource) == {"apiVersion", "kind", "metadata", "spec"}
            Draft202012Validator(schema).validate(resource["spec"])
    for path in KSERVE:
        for resource in kustomize.read(path):
            validate(resource)


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


@pytest.mark.parametrize("service", kserve("InferenceService"), ids=lambda service: str(service["metadata"]["name"]))
def test_pod_that_kserve_makes_is_a_pod_and_fits_the_image(service: Resource) -> None:
    spec = merged(service)
    metadata = {"name": "gathernd"}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    (main,) = spec["containers"]
    names = [volume["name"] for volume in spec["volumes"]]
    # KServe merges volumes of the same name, which would give one of two kinds.
    assert len(set(names)) == len(names)
    assert {mount["name"] for mount in main["volumeMounts"]} == set(names)
    chosen = environment(main)
    assert set(chosen) <= set(SETTING_NAMES)
    assert spec["enableServiceLinks"] is False
    assert spec["terminationGracePeriodSeconds"] >= 10 + sum(
        float(chosen[f"GATHERND_DRAIN_{part}"]) for part in ("DELAY", "TIMEOUT")
    )
    assert main["name"] == "kserve-container"
    assert main["image"] == f"gathernd:{app.__version__}"
    context = main["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == IMAGE.arguments("USER")[0]
    assert context["readOnlyRootFilesystem"] is context["runAsNonRoot"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["mountPath"] for mount in main["volumeMounts"]}
    assert {*json.loads(IMAGE.arguments("VOLUME")[0]), "/tmp"} <= mounts
    assert chosen.get("GATHERND_STORE_DIR", "/var/lib/gathernd") in mounts
