"""Answers that come late, break off, or are not the service's own: each part of the page says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.conftest import NAME, Open, go_to, hold, let_come, until, until_held
from tests.browser.prefix_proxy import PREFIX, prefix_proxy
from tests.browser.test_front_page import ARRAY, DROP, rows_of, tensors
from tests.for_each import for_each
from tests.http.server import Server
from tests.http.tensors import npy

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["tensors"]
pytestmark = pytest.mark.slow
Act = Callable[["Page"], None]


def gather(page: Page) -> None:
    page.locator("#run").click()


def look_up(page: Page) -> None:
    go_to(page, "Lookups")
    page.locator("#lookup-run").click()


def list_versions(page: Page) -> None:
    go_to(page, "Tensors")
    page.get_by_role("button", name="Versions of table", exact=True).click()


def upload(page: Page) -> None:
    go_to(page, "Tensors")
    page.evaluate(DROP, ["broken.npy", list(npy(ARRAY))])
    page.get_by_role("button", name="Upload", exact=True).click()


def import_a_tensor(page: Page) -> None:
    go_to(page, "Tensors")
    page.get_by_text("Import from a URL").click()
    page.get_by_label("URL", exact=True).fill("https://host.example/broken.npy")
    page.get_by_label("URL", exact=True).press("Tab")
    page.get_by_role("button", name="Import", exact=True).click()


def load(page: Page) -> None:
    until(page, "document.querySelectorAll('#lookup-0-tensor option').length")
    until(page, "document.querySelectorAll('#metrics-rows tr').length")


@for_each(
    ("act", "path", "shown"),
    [
        (gather, "gathernd", "#problem .problem-text"),
        (look_up, "lookup", "#lookup-problem .problem-text"),
        (list_versions, "tensors/table", ".look .problem-text"),
        (upload, "tensors/broken", "#upload-result .problem-text"),
        (import_a_tensor, "tensors/broken/import", "#import-result .problem-text"),
    ],
)
def test_an_answer_that_is_not_the_services_is_told(
    page: Page, tensors: httpx.Client, act: Act, path: str, shown: str
) -> None:
    page.reload()
    load(page)
    page.route(f"**/{path}*", lambda route: route.fulfill(content_type="text/html", body="<p>Please sign in</p>"))
    act(page)
    page.locator(shown).get_by_text("is not the service's").wait_for()
    assert page.locator("[aria-busy]").count() == 0
    assert page.locator("#upload-running, #import-running").locator("visible=true").count() == 0
    page.unroute_all()


def test_answers_that_break_off_are_told(open_page: Open, server: Server, tensors: httpx.Client) -> None:
    broken: list[str] = []
    with prefix_proxy(server.port, lambda asked: asked.split("?")[0].endswith(tuple(broken))) as port:
        page = open_page("/livez")
        page.goto(f"http://{NAME}:{port}{PREFIX}/")
        load(page)
        broken += ["/gathernd", "/tensors", "/metrics"]
        gather(page)
        page.locator("#problem .problem-text").get_by_text("broke off").wait_for()
        page.reload()
        go_to(page, "Tensors")
        page.locator("#tensors-note").get_by_text("broke off").wait_for()
        go_to(page, "Routes")
        page.locator("#metrics-note").get_by_text("broke off").wait_for()


def test_rows_are_those_asked_for_last(open_page: Open, tensors: httpx.Client) -> None:
    page = open_page("/#tensors")
    rows_of(page, "table")
    page.get_by_role("button", name="Later").click()
    page.get_by_text("rows 8 to 15 of 100").wait_for()
    held = hold(page, "**/content?rows=*")
    page.get_by_role("button", name="Later").click()
    page.get_by_role("button", name="Earlier").click()
    until_held(page, held, 2)
    let_come(page, held[1])
    page.get_by_text("rows 0 to 7 of 100").wait_for()
    let_come(page, held[0])
    page.wait_for_timeout(200)
    assert page.get_by_text("rows 0 to 7 of 100").is_visible()
    assert page.locator(".look [aria-busy]").count() == 0


@pytest.fixture
def versions(server: Server) -> Iterator[httpx.Client]:
    """A resident tensor `past` with two versions."""
    client = server.shared_client()
    for number in (1, 2):
        client.put("/tensors/past", params={"keep": "2"}, content=npy(ARRAY + number))
    yield client
    client.delete("/aliases/past-live")
    client.delete("/tensors/past")


def test_a_button_for_an_alias_that_is_pressed_twice_acts_once(open_page: Open, versions: httpx.Client) -> None:
    page = open_page("/#tensors")
    page.get_by_role("button", name="Versions of past", exact=True).click()
    held = hold(page, "**/aliases/*")
    page.get_by_label("Alias", exact=True).fill("past-live")
    page.get_by_role("button", name="Set", exact=True).dblclick()
    page.wait_for_timeout(200)
    assert len(held) == 1
    held[0].continue_()
    page.get_by_text("past-live is version").wait_for()
    until(page, "!document.querySelector('.look [aria-busy]')")
    assert page.locator(".look .problem").count() == 0
