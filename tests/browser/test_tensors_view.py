"""The view of the resident tensors in a browser: search, a row by its number, download, delete, and the aliases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from tests.browser.conftest import Open, until
from tests.browser.test_front_page import FITS
from tests.http.server import Server
from tests.http.tensors import npy

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow
LONG = "a-name.as-long_as-names-may-be." * 4 + "wide"
TABLE = np.arange(300, dtype=np.float32).reshape(100, 3)


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """Two resident tensors of two versions each, one with a long name, and an alias of an older version."""
    client = server.shared_client()
    for name in ("shelf", LONG):
        for number in (0, 1):
            query = {"keep": "2", "note": f"run {number}" if name == "shelf" else "n" * 1024}
            client.put(f"/tensors/{name}", params=query, content=npy(TABLE + number))
    oldest = client.get("/tensors/shelf").json()["versions"][0]
    client.put("/aliases/shelf-live", json={"tensor": f"shelf@{oldest}"})
    yield client
    for alias in client.get("/aliases").json()["aliases"]:
        client.delete(f"/aliases/{alias['alias']}")
    for name in ("shelf", LONG):
        client.delete(f"/tensors/{name}")


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def names(page: Page) -> list[str]:
    return page.locator("#tensors-rows > li:visible > .line-head > .name").all_inner_texts()


@pytest.mark.usefixtures("many_tensors")
def test_a_search_finds_tensors_beyond_the_first_page_and_says_how_many(open_page: Open) -> None:
    page = open_page("/#tensors")
    button(page, "Rows of many-000").wait_for()
    page.get_by_label("Search").fill("ANY-10")
    until(page, "document.getElementById('tensors-note').textContent.startsWith('1 of ')")
    assert names(page) == ["many-100"]
    page.get_by_label("Search").fill("")
    assert len(names(page)) > 100


def test_a_row_is_gone_to_by_its_number(open_page: Open, client: httpx.Client) -> None:
    page = open_page("/#tensors")
    button(page, "Rows of shelf").click()
    page.get_by_label("Row", exact=True).fill("57")
    page.keyboard.press("Enter")
    page.get_by_text("rows 57 to 64 of 100").wait_for()
    first = page.locator(".rows-table tr").first.locator("th, td").all_inner_texts()
    assert first == ["57", *(f"{value:g}" for value in TABLE[57] + 1)]


def test_a_tensor_and_a_version_are_downloaded(open_page: Open, client: httpx.Client) -> None:
    page = open_page("/#tensors")
    oldest = client.get("/tensors/shelf").json()["versions"][0]
    button(page, "Versions of shelf").click()
    for reference, content in (("shelf", TABLE + 1), (f"shelf@{oldest}", TABLE)):
        with page.expect_download() as got:
            button(page, f"Download {reference}").click()
        assert got.value.suggested_filename.endswith(".npy")
        assert np.array_equal(np.load(got.value.path()), content)


def test_a_tensor_is_deleted_once_that_is_confirmed(open_page: Open, client: httpx.Client) -> None:
    client.put("/tensors/passing", content=npy(TABLE))
    page = open_page("/#tensors")
    for no in ("Escape", "Enter"):  # Cancel has the focus
        button(page, "Delete passing").click()
        page.get_by_role("dialog").wait_for()
        page.keyboard.press(no)
        page.get_by_role("dialog").wait_for(state="hidden")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Delete passing"
    assert client.get("/tensors/passing").status_code == 200
    button(page, "Delete passing").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("passing is deleted").wait_for()
    until(page, "!document.querySelector(\"[aria-label='Rows of passing']\")")
    assert client.get("/tensors/passing").status_code == 404
    assert page.locator("#data-source option[value=passing]").count() == 0


def test_a_version_is_deleted_and_one_with_an_alias_is_not(open_page: Open, client: httpx.Client) -> None:
    oldest, newest = client.get("/tensors/shelf").json()["versions"]
    page = open_page("/#tensors")
    button(page, "Versions of shelf").click()
    notes = page.locator(".versions > li .facts > :nth-child(4)")
    notes.first.wait_for()
    assert notes.all_inner_texts() == ["run 1", "run 0"]
    button(page, f"Delete shelf@{oldest}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator("#tensors-said .error-link", has_text="tensor_in_use").wait_for()
    button(page, f"Delete shelf@{newest}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text(f"shelf@{newest} is deleted").wait_for()
    until(page, "document.querySelectorAll('.versions > li').length === 1")
    assert client.get("/tensors/shelf").json()["versions"] == [oldest]


def test_aliases_are_made_moved_and_deleted_in_their_list(open_page: Open, client: httpx.Client) -> None:
    oldest, newest = client.get("/tensors/shelf").json()["versions"]
    page = open_page("/#tensors")
    page.locator("#aliases summary").click()
    page.get_by_label("New alias").fill("next")
    page.get_by_label("Version that it names").fill(f"shelf@{newest}")
    page.keyboard.press("Enter")
    page.get_by_text(f"next names shelf@{newest} now").wait_for()
    assert client.get("/aliases/next").json()["version"] == newest
    moved = page.get_by_label("Version that next names")
    moved.fill(f"shelf@{oldest}")
    button(page, "Move the alias next").click()
    page.get_by_text(f"next names shelf@{oldest} now").wait_for()
    assert client.get("/aliases/next").json()["version"] == oldest
    client.put("/aliases/next", json={"tensor": f"shelf@{newest}"})  # somebody else moves it
    button(page, "Delete the alias next").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.locator("#aliases-said .error-link", has_text="precondition_failed").wait_for()
    until(page, f"document.querySelector(\"[aria-label='Version that next names']\").value === 'shelf@{newest}'")
    button(page, "Delete the alias next").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("The alias next is deleted").wait_for()
    assert client.get("/aliases/next").status_code == 404


def test_a_table_of_a_cluster_shows_its_ranges_and_which_replicas_are_in_sync(
    open_page: Open, client: httpx.Client
) -> None:
    shards = ["a", "b", "c"]
    ranges = [
        {"start": 0, "stop": 60, "shards": shards, "primary": "b", "in_sync": ["a", "b"]},
        {"start": 60, "stop": 100, "shards": shards, "primary": "a", "in_sync": shards},
    ]
    listed = [one | {"replicas": 3} for one in client.get("/tensors").json()["tensors"]]
    told = client.get("/tensors/shelf").json() | {"replicas": 3, "ranges": ranges}
    page = open_page("/")
    page.route("**/tensors?limit=*", lambda route: route.fulfill(json={"tensors": listed, "next": None}))
    page.route("**/tensors/shelf%40*", lambda route: route.fulfill(json=told))
    page.goto(page.url + "#tensors")
    page.reload()
    page.locator(".facts", has_text="3 replicas").first.wait_for()
    button(page, "Versions of shelf").click()
    summary = page.locator(".ranges summary").first
    assert summary.inner_text() == "2 ranges, 3 replicas, at least 2 in sync"
    summary.click()
    lines = page.locator(".ranges").first.locator("li").all_inner_texts()
    assert lines == [
        "rows 0 to 59: a (in sync), b (primary), c (out of sync)",
        "rows 60 to 99: a (primary), b (in sync), c (in sync)",
    ]
    assert page.evaluate(FITS)
