"""The interactive page at /docs in a browser: what it shows and leaves out, an upload and a lookup from it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.browser.conftest import NAME, Open, until
from tests.http.conftest import Start

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

READY = "document.querySelectorAll('.opblock').length > 5"


def block(page: Page, tag: str, operation: str) -> Locator:
    """The part of an operation, opened, with its form."""
    found = page.locator(f"[id='operations-{tag}-{operation}']")
    if found.locator(".opblock-body").count() == 0:
        found.locator(".opblock-summary-control").click()
    found.locator(".execute").wait_for()
    return found


def execute(found: Locator) -> tuple[int, str]:
    """Send an operation's request: status and body of the answer."""
    found.locator(".execute").click()
    answer = found.locator(".live-responses-table .response")
    answer.wait_for()
    status = int(answer.locator(".response-col_status").inner_text().split()[0])
    return status, answer.locator(".highlight-code pre").first.inner_text()


def test_the_interactive_page_answers_an_example_from_a_browser(open_page: Open, start: Start) -> None:
    with start("--allowed-hosts", NAME, "--kernel", "numpy") as server:
        page = open_page("/docs", server=server)
        until(page, READY)
        status, body = execute(block(page, "gather", "gathernd"))
        assert (status, json.loads(body)["output"]["values"]) == (200, [0.0, 3.0])


@pytest.mark.slow
def test_what_is_used_most_comes_first_and_what_is_not_offered_is_left_out(open_page: Open) -> None:
    page = open_page("/docs")
    until(page, READY)
    paths = "[...document.querySelectorAll('.opblock-summary-path')].map(e => e.dataset.path)"
    assert page.evaluate(paths) == [
        "/gathernd", "/gather", "/gather_elements", "/gather_block_quantized", "/gathernd/backward", "/gather/backward",
        "/lookup", "/tensors/{name}/rows", "/scatternd", "/scatter_elements",
        "/tensors", "/tensors/{name}", "/tensors/{name}", "/tensors/{name}", "/tensors/{name}/content",
        "/tensors/{name}/keys", "/tensors/{name}/keys",
        "/tensors/{name}/scatter", "/tensors/{name}/upsert", "/tensors/{name}/remove", "/tensors/{name}/replicas",
        "/tensors/{name}/import",
        "/imports", "/imports/{id}", "/imports/{id}",
        "/aliases", "/aliases", "/aliases/{alias}", "/aliases/{alias}", "/aliases/{alias}",
    ]  # fmt: skip
    tags = page.locator("h3.opblock-tag")
    assert [each.get_attribute("data-tag") for each in tags.all()] == [
        "gather", "scatter", "tensors", "inference protocol", "health", "pages",
    ]  # fmt: skip
    for each in tags.all()[3:]:
        each.click()
    until(page, "document.querySelectorAll('.opblock').length > 30")
    document = page.evaluate("async () => (await fetch('openapi.json')).json()")
    left_out = {path for path in document["paths"] if "sharedmemory" in path}
    assert len(left_out) == 10
    assert set(page.evaluate(paths)) == set(document["paths"]) - left_out


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_colour_scheme(open_page: Open, scheme: str) -> None:
    page = open_page("/docs", color_scheme=scheme)
    until(page, READY)
    red, green, blue = map(
        int, re.findall(r"\d+", page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"))[:3]
    )
    assert (red + green + blue > 3 * 128) == (scheme == "light")


@pytest.mark.slow
def test_an_npy_file_is_uploaded_and_looked_up_from_the_page(open_page: Open, tmp_path: Path) -> None:
    file = tmp_path / "items.npy"
    np.save(file, np.array([[0, 1], [10, 11], [20, 21]], np.float32))
    page = open_page("/docs")
    until(page, READY)
    put = block(page, "tensors", "putTensor")
    put.locator("input[placeholder='name']").fill("items")
    put.locator("input[type='file']").set_input_files(file)
    status, body = execute(put)
    assert (status, json.loads(body)["shape"]) == (201, [3, 2])
    gathernd = block(page, "gather", "gathernd")
    gathernd.locator(".examples-select select").first.select_option("resident")
    status, body = execute(gathernd)
    assert (status, json.loads(body)["output"]["values"]) == (200, [20.0, 21.0, 0.0, 1.0])
    remove = block(page, "tensors", "deleteTensor")
    remove.locator("input[placeholder='name']").fill("items")
    remove.locator(".execute").click()
    assert remove.locator(".live-responses-table .response .response-col_status").inner_text().startswith("204")
