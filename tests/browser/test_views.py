"""The views of the page at / in a browser: one at a time, each with an address, a title and a way back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import Open, go_to, until
from tests.for_each import for_each

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
VIEWS = ["playground", "lookups", "gradients", "tensors", "routes"]


def shown(page: Page) -> list[str]:
    return [view for view in VIEWS if page.locator(f"[data-view={view}]").is_visible()]


@for_each("view", VIEWS)
def test_a_link_to_a_view_opens_it_alone(page: Page, view: str) -> None:
    page.goto(page.url.partition("#")[0] + f"#{view}")
    page.locator(f"[data-view={view}]").wait_for()
    until(page, "document.querySelector('nav [aria-current]')")
    assert shown(page) == [view]
    assert page.locator("nav [aria-current=page]").inner_text().lower() == view
    assert page.title().lower().startswith(view)
    assert page.locator("h1:visible").count() == 1


def test_the_back_button_goes_from_view_to_view_and_keeps_what_was_typed(open_page: Open) -> None:
    page = open_page()
    page.locator("#indices-values").fill("[[2, 2]]")
    for view in ("Tensors", "Routes"):
        go_to(page, view)
    for view in ("tensors", "playground"):
        page.go_back()
        page.locator(f"[data-view={view}]").wait_for()
        assert shown(page) == [view]
    assert page.locator("#indices-values").input_value() == "[[2, 2]]"
    page.go_forward()
    page.locator("[data-view=tensors]").wait_for()
    page.reload()
    page.locator("[data-view=tensors]").wait_for()
