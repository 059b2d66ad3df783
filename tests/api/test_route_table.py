"""The table of routes, held against the OpenAPI description, the handlers and all other modules."""

from __future__ import annotations

import json
import re

import pytest

from app.api.route_rows.operation import Route
from app.api.route_table import OPERATIONS, ROUTES, TABLE
from app.api.route_table import template as template_of
from app.main import Application, create_app
from app.security.authorizer import Access
from app.settings import Settings
from tests.for_each import for_each
from tests.http.server import ROOT

PATHS = json.loads((ROOT / "openapi" / "openapi.json").read_bytes())["paths"]
"""Those of the description, whose file a test over HTTP holds to what is served."""


@pytest.fixture(scope="module")
def app() -> Application:
    return create_app(Settings())


def test_the_description_has_every_operation_of_the_table_and_no_other() -> None:
    described = {
        (operation["operationId"], method.upper(), path)
        for path, operations in PATHS.items()
        for method, operation in operations.items()
    }
    assert described == {(name, method, route.template) for name, (method, route) in OPERATIONS.items()}


def test_each_operation_has_a_handler_and_no_other_has_one(app: Application) -> None:
    assert set(app.handlers) == set(OPERATIONS)


def test_what_needs_no_key_is_said_to_need_none() -> None:
    open_to_all = {path for path, operations in PATHS.items() for one in operations.values() if "security" in one}
    assert open_to_all == {route.template for route in ROUTES if route.access is Access.PUBLIC}


@for_each("route", ROUTES)
def test_every_route_is_found_by_a_path_and_labelled_with_its_template(route: Route, app: Application) -> None:
    path = re.sub(r"\{\w+\}", "x1", route.template)
    assert TABLE.find(path) == (route, ("x1",) * route.template.count("{"))
    assert template_of(path) == app.metrics.template(path) == route.template
