"""The descriptor that is made of the .proto files, the calls of Triton's service, and how errors are told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from app.api.error_responses import problem
from app.errors import CATALOGUE, CODES, GatherError, Place
from app.grpc_api.error_trailers import MOST_PROBLEM_BYTES, problem_bytes, status_message
from app.grpc_api.rpc_table import NOT_OFFERED, RPCS
from tests.for_each import for_each
from tests.grpc_api.messages import pb
from tests.needs import in_environment

ROOT = Path(__file__).parents[2]


def test_the_descriptor_is_what_the_compiler_makes() -> None:
    python = in_environment(".venv-clients/kserve/bin/python", "clients")
    command = [str(python), "-m", "deploy.grpc_messages", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode == 0


def test_every_call_of_tritons_service_is_offered_or_refused_with_a_reason() -> None:
    theirs = {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    ours = {rpc.method for path, rpc in RPCS.items() if path.startswith("/inference.")}
    assert ours | set(NOT_OFFERED) == theirs
    assert not ours & set(NOT_OFFERED)


def test_every_code_has_a_status() -> None:
    import grpc

    statuses = set(grpc.StatusCode.__members__) - {"OK", "UNKNOWN", "CANCELLED"}
    assert {row.grpc_status for row in CATALOGUE.values()} <= statuses


@for_each("code", CODES)
@for_each("detail", ["short", "é" * 30_000, "\ud800" * 3000])
def test_a_problem_fits_the_metadata(code: Any, detail: str) -> None:
    places = [Place(f"/inputs/0/contents/int64_contents/{'9' * 400}{number}", (1,), number) for number in range(10)]
    error = GatherError(code, detail, places=places, total=1000, hint=detail)
    text = problem_bytes(error, "a" * 128)
    assert len(text) <= MOST_PROBLEM_BYTES
    assert f'"code":"{code}"'.encode() in text
    assert len(status_message(error)) <= 513
    if detail == "short":
        import orjson

        assert len(orjson.loads(text)["errors"]) < len(problem(error, "")["errors"])


@pytest.mark.parametrize(
    "detail", ["a" * 5000, "\u4e00" * 5000, "\U0001f600" * 600, "%" * 600, "\ud800" * 600, "short"]
)
def test_a_status_message_is_short_as_it_is_sent(detail: str) -> None:
    text = status_message(GatherError("internal", detail))
    assert len(quote(text, " ")) <= 1536 + 12
    assert text[:100] == detail[:100].encode("utf-8", "replace").decode()
