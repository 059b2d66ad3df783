"""The interactive page at /docs in a browser: what it shows and leaves out, an upload and a lookup from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.browser.conftest import Open, until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow
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
