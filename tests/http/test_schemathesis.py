"""Schemathesis, a client that knows only the OpenAPI file, against the running service, in `make test-all`.

It sends what the file allows and what it forbids to every operation in it. No answer may be a 5xx other than 501, 503
and 507, nor have a status, media type or body that the file does not describe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings
from schemathesis import Case, SerializationContext
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.conftest import samples
from tests.http.conftest import Start
from tests.http.server import ROOT, Server


@schemathesis.serializer("application/x-safetensors", "application/x-npy")
def _octets(_: SerializationContext, value: Any) -> bytes:
    """Binary bodies as they come: what is in them is for the tests of those formats."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


schema = schemathesis.openapi.from_path(ROOT / "openapi" / "openapi.json")
pytestmark = pytest.mark.slow
DOCUMENTED_5XX = {501, 503, 507}
CONCRETE = {path for path in schema.raw_schema["paths"] if "{" not in path}


@pytest.fixture(scope="module")
def own_server(start: Start) -> Iterator[Server]:
    """A server of its own, whose tensors may come and go."""
    with start("--kernel", "numpy") as server:
        yield server


@schema.parametrize()
@settings(max_examples=samples(6), suppress_health_check=list(HealthCheck), deadline=None)
def test_every_answer_is_one_that_the_file_describes(case: Case, own_server: Server) -> None:
    # /v2/models/stats is not the path of a model `stats`: those without parameters come first (OpenAPI 3.1, Paths).
    assume(case.path in CONCRETE or case.formatted_path not in CONCRETE)
    answer = case.call(base_url=own_server.url, timeout=60)
    assert answer.status_code < 500 or answer.status_code in DOCUMENTED_5XX, answer.text
    case.validate_response(
        answer,
        checks=[status_code_conformance, content_type_conformance, response_schema_conformance],
    )
    assert own_server.process.poll() is None
