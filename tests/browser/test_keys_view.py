"""Tables with keys in a browser: the type of the keys, and the row of a key that is typed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gathernd import Client
from tests.browser.conftest import Open
from tests.http.server import Server

pytestmark = pytest.mark.slow
ROWS = np.array([[1.5, 2], [3.25, 4.5]], np.float32)


@pytest.fixture
def tables(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        client.put("keyed", ROWS, keys=np.array([7, 2**62 + 1]))
        client.put("named", np.array([2**62 + 1, 5]), keys=["a&b", "é +"])
        client.put("plain", ROWS)
        yield client
        for name in ("keyed", "named", "plain"):
            client.delete(name)


@pytest.mark.usefixtures("tables")
def test_a_key_is_typed_and_its_row_comes_or_it_is_marked_as_missing(open_page: Open) -> None:
    page = open_page("/#tensors")
    for name, key, row in (
        ("keyed", str(2**62 + 1), ["3.25", "4.5"]),
        ("named", "a&b", [str(2**62 + 1)]),
        ("named", "é +", ["5"]),
    ):
        line = page.locator("#tensors-rows > li").filter(has=page.get_by_text(name, exact=True))
        opened = line.get_by_role("button", name=f"Rows of {name}")
        if opened.get_attribute("aria-expanded") == "false":
            opened.click()
        line.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
        found = page.get_by_role("table", name=f"Row of key {key}", exact=True)
        found.wait_for()
        assert found.locator("th, td").all_inner_texts() == [key, *row]
        line.get_by_label("Key", exact=True).fill("8")
        page.keyboard.press("Enter")
        missing = line.locator(".missing-key")
        missing.wait_for()
        assert (missing.inner_text(), found.count()) == ("The table has no key 8.", 0)
    line = page.locator("#tensors-rows > li").filter(has=page.get_by_text("keyed", exact=True))
    assert line.get_by_text("keys int64").is_visible()
    line.get_by_label("Key", exact=True).fill("seven")
    page.keyboard.press("Enter")
    line.get_by_text("a key must be an integer", exact=False).wait_for()


def test_a_table_that_is_replaced_has_its_keys_or_none(open_page: Open, tables: Client) -> None:
    page = open_page("/#tensors")
    page.get_by_role("button", name="Rows of plain", exact=True).click()
    page.get_by_text("rows 0 to 1 of 2").wait_for()
    line = page.locator("#tensors-rows > li").filter(has=page.get_by_text("plain", exact=True))
    field = line.get_by_label("Key", exact=True)
    assert not field.is_visible()
    tables.put("plain", ROWS, keys=[1, 2])
    page.reload()
    page.get_by_role("button", name="Rows of plain", exact=True).click()
    field.wait_for()
