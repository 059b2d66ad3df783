"""Answers that come out of order, or after something else was asked for, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from app.security import api_keys
from tests.browser.conftest import NAME, Open, go_to, hold, let_come, until, until_held
from tests.browser.test_front_page import ARRAY, DROP, rows_of, tensors
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.tensors import npy

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["tensors"]
pytestmark = pytest.mark.slow


@pytest.fixture
def versions(server: Server) -> Iterator[httpx.Client]:
    """A resident tensor `past` with two versions."""
    client = server.shared_client()
    for number in (1, 2):
        client.put("/tensors/past", params={"keep": "2"}, content=npy(ARRAY + number))
    yield client
    client.delete("/aliases/past-live")
    client.delete("/tensors/past")


def upload(page: Page, name: str) -> None:
    page.evaluate(DROP, [f"{name}.npy", list(npy(ARRAY))])
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text(f"{name} is here").wait_for()
    page.get_by_role("button", name=f"Rows of {name}", exact=True).wait_for()


def open_versions(page: Page) -> None:
    page.get_by_role("button", name="Versions of past", exact=True).click()
    page.locator(".versions").wait_for()


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


def test_a_list_that_is_read_anew_leaves_open_what_has_not_changed(open_page: Open, versions: httpx.Client) -> None:
    page = open_page("/#tensors")
    open_versions(page)
    page.get_by_label("Alias", exact=True).fill("past-live")
    upload(page, "another")
    versions.delete("/tensors/another")
    assert page.get_by_label("Alias", exact=True).input_value() == "past-live"
    assert page.locator(".versions").is_visible()


def test_a_chosen_version_stays_chosen_when_the_list_is_read_anew(open_page: Open, versions: httpx.Client) -> None:
    page = open_page("/#tensors")
    open_versions(page)
    before = versions.get("/tensors/past").json()["version"] - 1
    page.get_by_role("button", name=f"Try past@{before} in the playground").click()
    page.locator("#run").click()
    until(page, "document.getElementById('outcome').textContent")
    go_to(page, "Tensors")
    upload(page, "another")
    versions.delete("/tensors/another")
    assert page.locator("#data-source").input_value() == f"past@{before}"
    assert "ms there and back" in str(page.locator("#outcome").text_content())


def test_rows_of_a_tensor_that_was_replaced_are_of_its_new_type(open_page: Open, versions: httpx.Client) -> None:
    page = open_page("/#tensors")
    page.get_by_role("button", name="Rows of past", exact=True).wait_for()
    versions.put("/tensors/past", params={"keep": "2"}, content=npy(np.array([[0.5], [-0.0]], np.float32)))
    assert rows_of(page, "past") == [["0", "0.5"], ["1", "-0"]]


def test_a_button_for_an_alias_that_is_pressed_twice_acts_once(open_page: Open, versions: httpx.Client) -> None:
    page = open_page("/#tensors")
    open_versions(page)
    held = hold(page, "**/aliases/*")
    page.get_by_label("Alias", exact=True).fill("past-live")
    page.get_by_role("button", name="Set", exact=True).dblclick()
    page.wait_for_timeout(200)
    assert len(held) == 1
    held[0].continue_()
    page.get_by_text("past-live is version").wait_for()
    until(page, "!document.querySelector('.look [aria-busy]')")
    assert page.locator(".look .problem").count() == 0


def test_a_file_that_is_chosen_during_an_upload_is_the_next_one(open_page: Open, server: Server) -> None:
    page = open_page("/#tensors")
    held = hold(page, "**/tensors/earlier*")
    page.evaluate(DROP, ["earlier.npy", list(npy(ARRAY))])
    page.get_by_role("button", name="Upload", exact=True).click()
    until_held(page, held, 1)
    page.evaluate(DROP, ["next.npy", list(npy(ARRAY))])
    held[0].continue_()
    page.get_by_text("earlier is here").wait_for()
    assert page.locator("#upload-name").is_visible()
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text("next is here").wait_for()
    for name in ("earlier", "next"):
        server.shared_client().delete(f"/tensors/{name}")


def test_metrics_are_those_asked_for_last(open_page: Open) -> None:
    page = open_page()
    until(page, "document.querySelectorAll('#metrics-rows tr').length")
    held = hold(page, "**/metrics")
    go_to(page, "Routes")
    until_held(page, held, 1)
    page.get_by_role("button", name="Read again").click()
    until_held(page, held, 2)
    for count in (2, 1):
        sample = f'gathernd_kernel_routes_total{{route="loop"}} {count}'
        held[count - 1].fulfill(body=sample)
        page.wait_for_timeout(200)
        assert page.locator("#metrics-rows tr:first-child td:nth-child(2)").inner_text() == "2"


@pytest.fixture
def guarded(start: Start, tmp_path: Path) -> Iterator[tuple[Server, str, str]]:
    """A server with keys, one of which may gather and change tensors, and another that may only change tensors."""
    keys = tmp_path / "keys"
    key = api_keys.add(keys, "all", ["gather", "tensors"])
    few = api_keys.add(keys, "few", ["tensors"])
    with start("--allowed-hosts", NAME, "--api-keys-file", str(keys)) as running:
        yield running, key, few


def test_a_late_refusal_for_want_of_a_key_does_not_ask_for_it_again(
    open_page: Open, guarded: tuple[Server, str, str]
) -> None:
    server, key, _ = guarded
    page = open_page("/livez", server=server)
    held = hold(page, "**/tensors?*")
    page.goto(f"http://{NAME}:{server.port}/#gradients")
    page.get_by_role("button", name="Add up").click()  # this one is refused at once
    page.locator("#key").fill(key)
    page.keyboard.press("Enter")
    until_held(page, held, 2)
    go_to(page, "Tensors")
    let_come(page, held[1])
    page.get_by_text("No tensor is here yet").wait_for()
    let_come(page, held[0])
    page.wait_for_timeout(200)
    assert page.locator("#key-form").is_hidden()
    assert page.get_by_text("No tensor is here yet").is_visible()


def test_a_key_that_no_header_field_can_hold_is_refused_where_it_is_entered(
    open_page: Open, guarded: tuple[Server, str, str]
) -> None:
    server, key, _ = guarded
    page = open_page("/#tensors", server=server)
    for text in ("ключ", " "):
        page.locator("#key").fill(text)
        page.keyboard.press("Enter")
        page.wait_for_timeout(200)
        assert page.locator("#key:invalid").is_visible()
        assert page.locator("#key").input_value() == text
    page.locator("#key").fill(f" {key} ")
    page.keyboard.press("Enter")
    page.get_by_text("No tensor is here yet").wait_for()


def test_a_wrong_key_leaves_the_focus_where_the_next_is_entered(
    open_page: Open, guarded: tuple[Server, str, str]
) -> None:
    page = open_page(server=guarded[0])
    page.locator("#key").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not know this key").wait_for()
    assert page.evaluate("document.activeElement.id") == "key"


def test_the_code_to_copy_names_the_key_though_the_list_is_refused(
    open_page: Open, guarded: tuple[Server, str, str]
) -> None:
    server, _, few = guarded
    page = open_page("/#tensors", server=server)
    page.locator("#key").fill(few)
    page.keyboard.press("Enter")
    page.locator("#tensors-note").get_by_text("needs a key with the scope 'gather'").wait_for()
    for code in ("curl-code", "lookup-curl", "backward-curl"):
        assert "Bearer $GATHERND_API_KEY" in str(page.locator(f"#{code}").text_content())
