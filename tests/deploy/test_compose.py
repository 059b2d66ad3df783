"""The compose files: of the specification's form, on things that exist, and with no more rights than needed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_pydantic.models import ComposeSpecification
from typer.testing import CliRunner

import app
from app.security.api_keys import key_digest
from app.security.authorizer import Access, KeyAuthorizer
from app.settings import SETTING_NAMES
from gathernd_cli import command_line
from tests.deploy.dockerfile import read_dockerfile
from tests.http.server import ROOT

FILES = ["docker-compose.yml", "deploy/compose/monitoring.yml", "deploy/compose/gpu.yml"]
MONITORING = "deploy/compose/monitoring.yml"


def read(name: str) -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / name).read_text())
    assert isinstance(loaded, dict)
    return loaded


def services(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(name)["services"]
    return found


@pytest.mark.parametrize("name", FILES)
def test_file_is_of_the_form_that_the_specification_asks_for(name: str) -> None:
    ComposeSpecification.model_validate(read(name))


@pytest.mark.parametrize("name", FILES)
def test_everything_that_a_service_refers_to_exists(name: str) -> None:
    first = services("docker-compose.yml").keys()
    volumes = read(name).get("volumes", {}).keys() | read("docker-compose.yml")["volumes"].keys()
    for service in services(name).values():
        for text in service.get("volumes", ()):
            source = text.split(":")[0]
            # Compose reads relative paths from the folder of the first file, wherever the others lie.
            assert (ROOT / source).exists() if source.startswith(".") else source in volumes, text
        assert set(service.get("depends_on", ())) <= services(name).keys() | first
        build = service.get("build", ".")
        target = build["target"] if isinstance(build, dict) else "cpu"
        assert target in read_dockerfile()


@pytest.mark.parametrize("name", FILES)
def test_images_are_pinned_and_ours_has_the_version(name: str) -> None:
    for service in services(name).values():
        if "build" in service:
            assert service["image"] in {f"gathernd:{app.__version__}", f"gathernd:{app.__version__}-gpu"}
        else:
            assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", service["image"])


@pytest.mark.parametrize("name", ["docker-compose.yml", MONITORING])
def test_services_have_no_more_rights_than_they_need(name: str) -> None:
    for service in services(name).values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(text.startswith("127.0.0.1:") for text in service["ports"])
        assert "privileged" not in service
        assert "network_mode" not in service


def test_one_line_makes_a_key_that_may_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the compose file's first comment, with its file in a folder of the test."""
    text = (ROOT / "docker-compose.yml").read_text()
    (line,) = re.findall(r"^# +(echo .*>> \.env .*)$", text, re.MULTILINE)
    setting, add, up = (shlex.split(part) for part in line.split(" && "))
    assert up == ["docker", "compose", "up", "--detach"]
    name, _, path = setting[1].partition("=")
    service = services("docker-compose.yml")["gathernd"]
    assert service["environment"][name] is None, "without a value compose takes that of .env"
    assert f"keys:{Path(path).parent}" in service["volumes"]
    assert re.search(
        rf"^RUN install -d -o 10001 .*{Path(path).parent}\b", (ROOT / "Dockerfile").read_text(), re.MULTILINE
    )
    monkeypatch.setenv(name, str(tmp_path / "keys"))
    assert add[:5] == ["docker", "compose", "run", "--rm", "gathernd"]
    done = CliRunner().invoke(command_line.app, add[5:])
    assert done.exit_code == 0, done.output
    credential = key_digest(b"Bearer " + done.output.strip().encode())
    authorizer = KeyAuthorizer(tmp_path / "keys")
    for method in ("PUT", "GET"):
        authorizer.check(method, Access.TENSORS, credential)
    authorizer.check("POST", Access.GATHER, credential)


@pytest.mark.parametrize("name", FILES)
def test_settings_that_are_named_exist(name: str) -> None:
    named = set(re.findall(r"GATHERND_[A-Z_]+", (ROOT / name).read_text()))
    assert named <= set(SETTING_NAMES), named - set(SETTING_NAMES)


def test_nobody_can_log_in_to_grafana_with_a_well_known_password() -> None:
    environment = services(MONITORING)["grafana"]["environment"]
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs the Debian package prometheus")
def test_promtool_accepts_the_configuration_of_prometheus(tmp_path: Path) -> None:
    config = read("deploy/compose/prometheus.yml")
    config["rule_files"] = [
        path.replace("/etc/prometheus/rules", str(ROOT / "deploy/prometheus")) for path in config["rule_files"]
    ]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout
