"""The tables of docs/reference are those of the code: settings, dialects, errors, routes, commands."""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.api.route_table import ROUTES
from app.errors import CATALOGUE
from app.operators.dialects import Dialect
from app.operators.registry import OPERATORS
from app.security.authorizer import Access, needed_scope
from app.settings import settings_tables
from app.tensors.dtypes import DTYPES, INTEGERS
from tests.commands import command_names
from tests.markdown_blocks import ROOT, table

REFERENCE = ROOT / "docs/reference"


def test_settings_are_the_settings() -> None:
    """Where this fails, `gathernd settings` prints the tables as they have to be."""
    assert f"<!-- settings -->\n{settings_tables()}\n<!-- /settings -->\n" in (REFERENCE / "settings.md").read_text()


def test_errors_are_the_catalogue() -> None:
    expected = [[f"`{code}`", str(entry.status), entry.meaning] for code, entry in CATALOGUE.items()]
    assert table(REFERENCE / "errors.md", "| code | status |") == expected


def test_routes_are_the_routes() -> None:
    shown = {
        (method, path.strip("`")): needs for method, path, _, needs in table(REFERENCE / "routes.md", "| method |")
    }
    expected = {}
    for route in ROUTES:
        for method in route.operations if not route.template.startswith("/v2") else ():
            scope = needed_scope(method, route.access)
            anybody = "nothing" if route.access is Access.PUBLIC else "any key"
            expected[method, route.template] = f"`{scope}`" if scope else anybody
    assert shown == expected


def test_commands_are_the_commands() -> None:
    rows = table(REFERENCE / "commands.md", "| command | from |")
    assert {command.strip("`").removeprefix("gathernd ") for command, _, _ in rows} == command_names()


_COMPLEX = frozenset(name for name, row in DTYPES.items() if row.kind == "complex")
_FLOAT8 = frozenset(name for name in DTYPES if name.startswith("float8"))
_TYPES: Mapping[str, frozenset[str]] = {
    "without 8-bit floats": frozenset(DTYPES) - _FLOAT8,
    "without 8-bit floats and bfloat16": frozenset(DTYPES) - _FLOAT8 - {"bfloat16"},
    "without complex types": frozenset(DTYPES) - _COMPLEX,
    "every integer type": frozenset(INTEGERS),
}


def test_dialects_are_the_dialects() -> None:
    shown = {}
    for route, dialect, operator, data, indices, negative, parameter in table(
        REFERENCE / "dialects.md", "| route | dialect |"
    ):
        shown[route.strip("`/"), dialect.split("`")[1]] = (operator, data, indices, negative, parameter)
        default = OPERATORS[route.strip("`/")].signature.default_dialect
        assert ("(default)" in dialect) == (dialect.split("`")[1] == default)
    assert set(shown) == {(operator, name) for operator, row in OPERATORS.items() for name in row.dialects}
    for (operator, name), (version, data, indices, negative, parameter) in shown.items():
        row: Dialect = OPERATORS[operator].dialects[name]
        title = operator.title().replace("nd", "ND").replace("_", "")
        assert version == f"{title}-{name.split('-')[1]}"
        assert _types(data) == row.data_dtypes
        assert _types(indices) == row.index_dtypes
        assert negative == ("wrap" if row.wrap else "an error")
        parameters = [f"`{one.name}`" for one in OPERATORS[operator].signature.parameters]
        if row.fields and row.fields.batch_dims:
            parameters.append("`batch_dims`")
        if operator == "gathernd" and not row.has_batch_dims:
            parameters = []
        assert parameter == (", ".join(parameters) or "none")


def test_element_types_are_listed() -> None:
    text = (REFERENCE / "dialects.md").read_text()
    (listed,) = re.findall(r"The types are ([^.]+)\.", text)
    assert re.findall(r"\w+", listed.replace(" and ", " ")) == list(DTYPES)


def _types(text: str) -> frozenset[str]:
    return _TYPES.get(text) or frozenset(text.split(", "))
