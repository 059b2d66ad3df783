"""Answers that break off, or that are not the service's own, in a browser: each part of the page says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from tests.browser.conftest import NAME, Open, go_to, until
from tests.browser.prefix_proxy import PREFIX, prefix_proxy
from tests.browser.test_front_page import ARRAY, DROP, tensors
from tests.for_each import for_each
from tests.http.server import Server
from tests.http.tensors import npy

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["tensors"]
pytestmark = pytest.mark.slow


def gather(page: Page) -> None:
    page.locator("#run").click()


def look_up(page: Page) -> None:
    go_to(page, "Lookups")
    page.locator("#lookup-run").click()


def look_at_rows(page: Page) -> None:
    go_to(page, "Tensors")
    page.get_by_role("button", name="Rows of table", exact=True).click()


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


PARTS = [
    (gather, "gathernd", "#problem .problem-text"),
    (look_up, "lookup", "#lookup-problem .problem-text"),
    (list_versions, "tensors/table", ".look .problem-text"),
    (upload, "tensors/broken", "#upload-result .problem-text"),
]
Act = Callable[["Page"], None]


def load(page: Page) -> None:
    until(page, "document.querySelectorAll('#lookup-0-tensor option').length")
    until(page, "document.querySelectorAll('#metrics-rows tr').length")


@for_each(
    ("act", "path", "shown"), [*PARTS, (import_a_tensor, "tensors/broken/import", "#import-result .problem-text")]
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


@pytest.mark.parametrize(
    ("act", "path", "shown"), [*PARTS, (look_at_rows, "tensors/table/content", ".look .problem-text")]
)
def test_an_answer_that_breaks_off_is_told(
    open_page: Open, server: Server, tensors: httpx.Client, act: Act, path: str, shown: str
) -> None:
    broken: list[str] = []
    with prefix_proxy(server.port, lambda asked: asked.split("?")[0] in broken) as port:
        page = open_page("/livez")
        page.goto(f"http://{NAME}:{port}{PREFIX}/")
        load(page)
        broken.append(f"{PREFIX}/{path}")
        act(page)
        page.locator(shown).get_by_text("broke off" if act is not upload else "no answer").wait_for()
        assert page.locator("[aria-busy]").count() == 0
    tensors.delete("/tensors/broken")


def test_a_list_and_metrics_that_break_off_are_told(open_page: Open, server: Server) -> None:
    with prefix_proxy(server.port, lambda asked: asked.split("?")[0].endswith(("/tensors", "/metrics"))) as port:
        page = open_page("/livez")
        page.goto(f"http://{NAME}:{port}{PREFIX}/#tensors")
        page.locator("#tensors-note").get_by_text("broke off").wait_for()
        go_to(page, "Routes")
        page.locator("#metrics-note").get_by_text("broke off").wait_for()


@pytest.mark.parametrize("body", ["null", "<p>Bad gateway</p>"])
def test_an_error_that_is_not_the_services_is_told_with_its_status(open_page: Open, body: str) -> None:
    page = open_page()
    page.route("**/gathernd*", lambda route: route.fulfill(status=502, body=body))
    page.locator("#run").click()
    page.locator("#problem").get_by_text("the answer has status 502").wait_for()


def test_an_upload_of_a_file_that_has_gone_since_it_was_chosen_is_told(open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "gone.npy"
    np.save(file, ARRAY)
    page = open_page("/#tensors")
    page.locator("#upload-file").set_input_files(file)
    file.unlink()
    page.get_by_role("button", name="Upload", exact=True).click()
    page.locator("#upload-result .problem-text").get_by_text("cannot be read").wait_for()
