"""The form that has the service import a tensor from a URL, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import numpy as np
import pytest

from tests.browser.conftest import NAME, watched
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.tensors import npy, save
from tests.imports.range_server import RangeServer, range_server

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def source() -> Iterator[RangeServer]:
    with range_server() as running:
        running.files = {"/t/items.npy": npy(TABLE), "/t/many.safetensors": save(first=TABLE, second=TABLE[:2])}
        yield running


@pytest.fixture(scope="module")
def importing(start: Start, source: RangeServer) -> Iterator[Server]:
    with start("--allowed-hosts", NAME, "--import-from", f"{source.url}/t/") as running:
        yield running


@pytest.fixture
def page(browser: Any, importing: Server) -> Iterator[Any]:
    with watched(browser, viewport={"width": 390, "height": 800}) as opened:
        opened.goto(f"http://{NAME}:{importing.port}/#tensors")
        opened.get_by_text("Import from a URL").click()
        yield opened


def send(page: Any, url: str, tensor: str = "") -> None:
    page.get_by_label("URL", exact=True).fill(url)
    page.get_by_label("Tensor of a safetensors file").fill(tensor)
    page.get_by_role("button", name="Import", exact=True).click()


def test_a_tensor_is_imported_and_listed(page: Any, importing: Server, source: RangeServer) -> None:
    send(page, f"{source.url}/t/items.npy")
    page.get_by_text("items is here: float32 [3, 4], version 1.").wait_for()
    page.get_by_role("button", name="Rows of items", exact=True).wait_for()
    send(page, f"{source.url}/t/many.safetensors", "second")
    page.get_by_text("many is here: float32 [2, 4], version 1.").wait_for()
    page.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")


def test_an_import_that_is_refused_says_why(page: Any, source: RangeServer) -> None:
    for url, text in (
        (f"{source.url}/t/missing.npy", "the server responded with 404"),
        ("https://elsewhere.example/x.npy", "does not import from this URL"),
        (f"{source.url}/t/many.safetensors", "has 2 tensors"),
    ):
        send(page, url)
        page.locator("#import-result.problem").get_by_text(text).wait_for()


def test_progress_is_shown_and_an_import_can_be_cancelled(page: Any, importing: Server, source: RangeServer) -> None:
    going = Event()
    source.files["/t/held.npy"] = npy(np.zeros(1 << 21))

    def respond(handler: Any) -> bool:
        if (handler.headers["Range"] or "").startswith("bytes=8"):
            going.wait(120)
        return False

    source.respond = respond
    try:
        page.locator("#import-name").fill("held")
        send(page, f"{source.url}/t/held.npy")
        page.get_by_text("of 16.8 MB").wait_for()
        page.get_by_role("button", name="Cancel the import").click()
        page.get_by_text("The import was cancelled.").wait_for()
    finally:
        going.set()
        source.respond = lambda handler: False
    assert importing.shared_client().get("/tensors/held").status_code == 404
