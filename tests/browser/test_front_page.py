"""The page at / in a browser: what it loads, who can use it, uploads, resident tensors and keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import ml_dtypes
import numpy as np
import pytest

from app.security import api_keys
from tests.browser.conftest import NAME, Open, go_to, until
from tests.browser.prefix_proxy import PREFIX, prefix_proxy
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.server import Server
from tests.http.tensors import npy, put_raw, put_strings, save

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
SIZES = {"1280": {"width": 1280, "height": 900}, "390": {"width": 390, "height": 844}}
FITS = "document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture
def tensors(server: Server) -> Any:
    """A few resident tensors, removed at the end."""
    client = server.shared_client()
    put_raw(client, "table", np.arange(2000, dtype=np.float32).reshape(100, 20) / 7)
    put_raw(client, "halves", np.array([[0.1, -2], [65504, np.nan]], np.float16))
    put_raw(client, "brains", np.array([1.5, -0.01], ml_dtypes.bfloat16))
    put_strings(client, "texts", ["<img src=x onerror=alert(1)>", "naïve", ""])
    yield client
    for each in ("table", "halves", "brains", "texts"):
        client.delete(f"/tensors/{each}")


def rows_of(page: Page, name: str) -> list[list[str]]:
    """The table that the button Rows of a tensor opens."""
    page.get_by_role("button", name=f"Rows of {name}", exact=True).click()
    shown = page.locator(f".rows-table[aria-label$='of {name}']")
    shown.wait_for()
    return [row.locator("th, td").all_inner_texts() for row in shown.locator("tr").all()]


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong, each with the elements."""
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{each['id']}: {each['help']} {[node['html'] for node in each['nodes']]}" for each in found]


@pytest.mark.parametrize(("scheme", "size"), [("light", "1280"), ("dark", "390")])
def test_the_page_is_accessible_in_each_of_its_states(open_page: Open, tensors: Any, scheme: str, size: str) -> None:
    page = open_page(color_scheme=scheme, viewport=SIZES[size])
    until(page, "document.querySelectorAll('#tensors-rows button').length")
    assert violations(page) == []
    page.get_by_role("button", name="Rows", exact=True).click()
    until(page, "document.getElementById('outcome').textContent")
    page.locator('#output-grid [data-flat="5"]').focus()
    assert page.locator(".lit").count() > 2
    assert violations(page) == []
    page.get_by_role("button", name="A wrong index").click()
    page.wait_for_selector("#problem:not([hidden])")
    page.get_by_text("Python", exact=True).click()
    assert violations(page) == []
    page.locator("#indices-values").fill("[[0, ]]")
    page.locator("#run").click()
    page.locator("#problem mark").wait_for()
    assert violations(page) == []
    assert page.evaluate(FITS), "it scrolls sideways"
    go_to(page, "Routes")
    assert violations(page) == []
    assert page.evaluate(FITS), "it scrolls sideways"
    go_to(page, "Tensors")
    rows_of(page, "table")
    page.locator("#upload-file").set_input_files({"name": "x.bin", "mimeType": "", "buffer": b"12345678"})
    page.get_by_text("Import from a URL").click()
    page.locator("#aliases summary").click()
    assert violations(page) == []
    page.get_by_role("button", name="Delete table", exact=True).click()
    assert violations(page) == []
    assert page.evaluate(FITS), "it scrolls sideways"


def test_a_file_of_50_mb_is_uploaded_with_progress_and_can_be_cancelled(
    open_page: Open, server: Server, tmp_path: Path
) -> None:
    table = np.random.default_rng(3).random((200_000, 64), np.float32)
    file = tmp_path / "fifty.npy"
    np.save(file, table)
    assert file.stat().st_size > 50_000_000
    page = open_page("/#tensors")
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 25_000_000},
    )
    page.locator("#upload-file").set_input_files(file)
    assert page.locator("#upload-name").input_value() == "fifty"
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("the upload was cancelled").wait_for()
    assert server.shared_client().get("/tensors/fifty").status_code == 404
    page.evaluate(
        """() => {
            window.seen = [];
            const text = document.getElementById("upload-progress-text");
            const bar = document.getElementById("upload-progress");
            new MutationObserver(() => seen.push([bar.value, bar.max, text.textContent]))
                .observe(text, { childList: true });
        }"""
    )
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text("fifty is here: float32 [200000, 64]").wait_for(timeout=60_000)
    try:
        seen = page.evaluate("seen.filter(([, , text]) => text)")
        values = [value for value, _, _ in seen]
        assert values == sorted(values)
        assert len({value for value in values if 0 < value < 51_200_128}) >= 3, seen
        assert values[-1] == seen[-1][1] == file.stat().st_size
        assert "of 51.2 MB" in seen[0][2]
        assert page.locator("#upload-running").is_hidden()
        answer = server.shared_client().get("/tensors/fifty/content", params={"rows": "199999:200000"})
        assert np.array_equal(np.frombuffer(answer.content, "<f4"), table[-1])
        assert "51.2 MB" in page.locator("#tensors-rows li", has_text="fifty").first.inner_text()
    finally:
        server.shared_client().delete("/tensors/fifty")


DROP = """([name, bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name));
    const zone = document.getElementById("drop-zone");
    zone.dispatchEvent(new DragEvent("dragover", { dataTransfer: data, bubbles: true, cancelable: true }));
    zone.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""
ARRAY = np.arange(6, dtype=np.int16).reshape(2, 3)


@for_each(
    ("name", "content", "fields"),
    [
        ("my table!.npy", npy(ARRAY), {}),
        ("dropped.safetensors", save(x=ARRAY), {}),
        ("raw.bin", ARRAY.tobytes(), {"dtype": "int16", "shape": "2, 3"}),
    ],
)
def test_a_file_is_uploaded_by_dropping_it(
    page: Page, server: Server, name: str, content: bytes, fields: dict[str, str]
) -> None:
    go_to(page, "Tensors")
    page.evaluate(DROP, [name, list(content)])
    given = page.locator("#upload-name").input_value()
    assert given in ("my_table_", "dropped", "raw")
    assert page.locator("#upload-raw").is_visible() == bool(fields)
    if fields:
        page.locator("#upload-dtype").select_option(fields["dtype"])
        page.locator("#upload-shape").fill(fields["shape"])
    page.get_by_role("button", name="Upload", exact=True).click()
    page.get_by_text(f"{given} is here: int16 [2, 3]").wait_for()
    try:
        assert rows_of(page, given) == [["0", "0", "1", "2"], ["1", "3", "4", "5"]]
    finally:
        server.shared_client().delete(f"/tensors/{given}")


def test_an_upload_that_is_refused_says_why(open_page: Open) -> None:
    page = open_page("/#tensors")
    page.locator("#upload-file").set_input_files({"name": "a.npy", "mimeType": "", "buffer": b"no npy file"})
    page.get_by_role("button", name="Upload", exact=True).click()
    page.locator("#upload-result .problem-text").wait_for()
    assert page.locator("#upload-result .error-link").inner_text() == "malformed_request"


def test_the_resident_tensors_are_listed_with_what_is_known_of_them(open_page: Open, tensors: httpx.Client) -> None:
    page = open_page("/#tensors")
    line = page.locator("#tensors-rows li", has_text="table").first
    line.wait_for()
    known = tensors.get("/tensors/table").json()
    shown = line.inner_text()
    assert all(text in shown for text in ("table", f"version {known['version']}", "float32 [100, 20]", "8.0 kB"))
    assert known["etag"] in str(line.locator("code").get_attribute("title"))
    rows = rows_of(page, "table")
    assert [row[0] for row in rows] == list(map(str, range(8)))
    assert [np.float32(text) for text in rows[1][1:13]] == (np.arange(20, 32, dtype=np.float32) / 7).tolist()
    assert rows[1][13] == "… 8 more"
    page.get_by_role("button", name="Later").click()
    page.get_by_text("rows 8 to 15 of 100").wait_for()
    assert rows_of(page, "halves") == [["0", "0.099976", "-2"], ["1", "65504", "NaN"]]
    assert rows_of(page, "brains") == [["0", "1.5"], ["1", "-0.01001"]]
    assert rows_of(page, "texts") == [["0", "<img src=x onerror=alert(1)>"], ["1", "naïve"], ["2", ""]]
    assert page.locator(".look img").count() == 0


def test_a_key_is_asked_for_and_kept_in_memory_alone(open_page: Open, start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = api_keys.add(keys, "reader", ["gather", "tensors"])
    with start("--allowed-hosts", NAME, "--api-keys-file", str(keys)) as guarded:
        page = open_page(server=guarded)
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        form = page.locator("#key-form")
        form.wait_for()
        assert violations(page) == []
        page.locator("#key").fill("wrong")
        form.get_by_role("button").click()
        page.get_by_text("does not know this key").wait_for()
        page.locator("#key").fill("ключ")  # no header field can hold it
        page.keyboard.press("Enter")
        page.locator("#key:invalid").wait_for()
        page.locator("#key").fill(key)
        page.keyboard.press("Enter")
        go_to(page, "Tensors")
        page.get_by_text("No tensor is here yet").wait_for()
        go_to(page, "Playground")
        assert form.is_hidden()
        page.locator("#run").click()
        until(page, "document.getElementById('outcome').textContent")
        go_to(page, "Tensors")
        page.evaluate(DROP, ["kept.npy", list(npy(ARRAY))])
        page.get_by_role("button", name="Upload", exact=True).click()
        page.get_by_text("kept is here").wait_for()
        with page.expect_download() as got:
            page.get_by_role("button", name="Download kept").click()
        assert np.array_equal(np.load(got.value.path()), ARRAY)
        go_to(page, "Playground")
        assert "Bearer $GATHERND_API_KEY" in page.locator("#curl-code").inner_text()
        page.get_by_text("Python", exact=True).click()
        program = page.locator("#python-code").inner_text().replace(f"//{NAME}:", "//127.0.0.1:")
        environment = os.environ | {"GATHERND_API_KEY": key}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.stdout, ran.stderr) == ("[ 0. 12. 23.]\n", "")
        stored = page.evaluate(
            """async () => JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage),
                document.cookie, await indexedDB.databases(), await (globalThis.caches?.keys() ?? [])])"""
        )
        assert json.loads(stored) == [[], [], "", [], []]
        assert key not in page.content() + page.url + "".join(urls)
        page.reload()
        form.wait_for()
        assert page.locator("#key").input_value() == ""


def test_the_pages_work_below_a_prefix(open_page: Open, server: Server) -> None:
    with prefix_proxy(server.port) as port:
        page = open_page("/readyz")
        asked: set[str] = set()
        page.on("request", lambda request: asked.add(request.url))
        answer = page.goto(f"http://{NAME}:{port}{PREFIX}/")
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        page.locator("#run").click()
        until(page, "document.getElementById('outcome').textContent")
        assert f"http://{NAME}:{port}{PREFIX}/gathernd " in page.locator("#curl-code").inner_text()
        go_to(page, "Tensors")
        page.evaluate(DROP, ["below.npy", list(npy(ARRAY))])
        page.get_by_role("button", name="Upload", exact=True).click()
        page.get_by_text("below is here").wait_for()
        page.goto(f"http://{NAME}:{port}{PREFIX}/docs")
        page.locator("#operations-tensors-getTensor .opblock-summary-control").click()
        page.locator("#operations-tensors-getTensor input[placeholder='name']").fill("below")
        page.locator("#operations-tensors-getTensor .execute").click()
        page.locator("#operations-tensors-getTensor .live-responses-table .response", has_text="200").wait_for()
        server.shared_client().delete("/tensors/below")
        assert {urlsplit(url).path[: len(PREFIX)] for url in asked if not url.startswith("data:")} == {PREFIX}


def test_the_page_says_when_the_service_is_gone(open_page: Open, start: Start) -> None:
    with start("--allowed-hosts", NAME) as short:
        page = open_page(server=short)
        until(page, "document.getElementById('readiness').textContent === 'ready'")
    page.locator("#run").click()
    page.get_by_text("is the service running?").wait_for()


def test_an_answer_that_is_not_the_services_is_told(page: Page) -> None:
    page.route("**/gathernd", lambda route: route.fulfill(content_type="text/html", body="<p>Please sign in</p>"))
    page.locator("#run").click()
    page.locator("#problem .problem-text").get_by_text("is not the service's").wait_for()
