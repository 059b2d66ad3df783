"""What the data plane answers before it is ready, and when as many requests as may be are under way."""

from __future__ import annotations

import pytest

from app.main import Application, create_app
from app.settings import Settings
from tests.api.asgi import ask


@pytest.fixture
def app() -> Application:
    """An application whose kernels are not ready."""
    return create_app(Settings())


@pytest.mark.parametrize("path", ["/gathernd", "/v2/models/gathernd/infer", "/v2/models/x/versions/1/infer"])
def test_a_gather_waits_for_kernels_and_other_methods_do_not(app: Application, path: str) -> None:
    assert ask(app, "POST", path)[0] == 503
    for method, status in [("GET", 405), ("HEAD", 405), ("PUT", 405), ("OPTIONS", 204)]:
        answered, fields = ask(app, method, path)
        assert (answered, fields["allow"]) == (status, "POST, OPTIONS")


def test_what_there_is_not_is_refused_as_such_however_many_requests_are_under_way(app: Application) -> None:
    app.admission.requests = 0
    assert ask(app, "GET", "/tensors/x")[0] == 503
    assert ask(app, "PATCH", "/tensors/x")[0] == 405
    assert ask(app, "OPTIONS", "/gathernd")[0] == 204
    assert ask(app, "GET", "/none")[0] == 404
    assert ask(app, "GET", "/livez")[0] == 200
