"""Tables with keys in a browser: the type of the keys, the row of a key that is typed, and changes of rows by key."""

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


def test_rows_are_changed_added_and_removed_by_key(open_page: Open, tables: Client) -> None:
    page = open_page("/#tensors")
    line = page.locator("#tensors-rows > li").filter(has=page.get_by_text("keyed", exact=True))
    line.get_by_role("button", name="Rows of keyed").click()
    said = line.get_by_role("status", name="Changes of keyed")

    line.get_by_text("Change or add rows").click()
    form = line.get_by_role("form", name="Change or add rows of keyed")
    form.get_by_label("Keys").fill(f"[{2**62 + 1}, 8")
    form.get_by_label("Rows").fill("[[1, 0.5], [9, 9]]")
    form.get_by_role("button", name="Change rows").click()
    said.get_by_text("Keys, line 1", exact=False).wait_for()
    form.get_by_label("Keys").fill(f"[{2**62 + 1}, 8]")
    form.get_by_label("Reduction").select_option("add")
    form.get_by_role("button", name="Change rows").click()
    said.get_by_text("1 row added; keyed has 3 rows.").wait_for()
    line.get_by_text("float32 [3, 2]").wait_for()
    assert tables.gather("keyed", keys=[7, 2**62 + 1, 8]).tolist() == [[1.5, 2], [4.25, 5], [9, 9]]

    line.get_by_text("Remove rows").first.click()
    form = line.get_by_role("form", name="Remove rows of keyed")
    form.get_by_label("Keys").fill("[7, 5]")
    form.get_by_role("button", name="Remove rows").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert tables.metadata("keyed").shape == (3, 2)
    form.get_by_role("button", name="Remove rows").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    said.get_by_text("1 row removed, 1 key missing; keyed has 2 rows.").wait_for()
    line.get_by_text("float32 [2, 2]").wait_for()
    assert tables.gather("keyed", keys=[8, 2**62 + 1]).tolist() == [[9, 9], [4.25, 5]]
