"""The pages for people: they load nothing from elsewhere, and the interactive one works in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from app.errors import CODES
from tests.http.conftest import Start

PAGES = ("/", "/docs", "/errors", *(f"/errors/{code}" for code in CODES))
CHROMIUM = shutil.which("chromium")
NAME = "gather.test"


class Urls(HTMLParser):
    """Collects what a page loads, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        for name, value in attrs:
            if name in ("href", "src", "action", "data", "poster", "srcset", "content") and value:
                if tag == "a":
                    self.links.append(value)
                elif name != "content":
                    self.loads.append(value)
                elif "url=" in value:
                    self.loads.append(value.partition("url=")[2])
            elif name == "style" and value:
                self.loads += css_urls(value)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "style":
            self.loads += css_urls(data)
        elif self._inside == "script":
            self.loads += re.findall(r"""["']((?:https?:)?//[^"']+)["']""", data)


def css_urls(text: str) -> list[str]:
    return re.findall(r"""url\(\s*["']?([^"')]+)""", text) + re.findall(r"""@import\s+["']([^"']+)""", text)


def is_own(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "data" or not (parts.scheme or parts.netloc)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_loads_from_here_and_its_links_lead_somewhere(client: httpx.Client, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200
    found = Urls()
    found.feed(answer.text)
    for url in found.loads + found.links:
        assert is_own(url), f"{page} names {url}"
        if not url.startswith(("data:", "#")):
            assert client.get(urljoin(page, url)).status_code == 200, f"{page} leads to {url}"


def test_what_the_interactive_page_loads_is_served_from_here(client: httpx.Client) -> None:
    found = Urls()
    found.feed(client.get("/docs").text)
    kinds = set()
    for url in found.loads:
        answer = client.get(urljoin("/docs", url))
        assert answer.status_code == 200
        kinds.add(answer.headers["content-type"].partition(";")[0])
        if url.endswith(".css"):
            assert all(is_own(inner) for inner in css_urls(answer.text)), url
    assert {"text/javascript", "text/css", "image/png"} <= kinds


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientConnection]:
    """A page of a browser that can reach this machine under one name and nothing else."""
    if CHROMIUM is None:
        pytest.skip("needs the Debian package chromium")
    profile = tmp_path_factory.mktemp("chromium")
    process = subprocess.Popen(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            f"--host-resolver-rules=MAP {NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "about:blank",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with connect(_page_address(profile / "DevToolsActivePort"), max_size=None, proxy=None) as page:
            yield page
    finally:
        process.terminate()
        process.wait(20)


def _page_address(file: Path) -> str:
    end = monotonic() + 60
    while True:
        if file.is_file() and len(lines := file.read_text().split()) == 2:
            pages = httpx.get(f"http://127.0.0.1:{lines[0]}/json", trust_env=False).json()
            for page in pages:
                if page["type"] == "page":
                    return str(page["webSocketDebuggerUrl"])
        assert monotonic() < end, "the browser does not start"
        sleep(0.1)


class Page:
    """Commands to a browser's page, and the network events that came in between."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message: dict[str, Any] = json.loads(self._connection.recv(timeout=60))
            if message.get("id") == self._number:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found
            self.events.append(message)

    def value(self, script: str) -> Any:
        return self.command("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str) -> None:
        end = monotonic() + 60
        while not self.value(f"!!({script})"):
            assert monotonic() < end, f"never: {script}"
            sleep(0.1)

    def named(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]


def test_the_interactive_page_works_in_a_browser(start: Start, browser: ClientConnection) -> None:
    with start("--allowed-hosts", NAME, "--kernel", "numpy") as server:
        page = Page(browser)
        for domain in ("Network", "Page", "Runtime", "Log"):
            page.command(f"{domain}.enable")
        page.command("Page.navigate", url=f"http://{NAME}:{server.port}/docs")
        page.wait_for("document.querySelectorAll('.opblock').length > 5")
        shown = page.value("[...document.querySelectorAll('.opblock-summary-path')].map(e => e.dataset.path)")
        document = server.shared_client().get("/openapi.json").json()
        assert set(shown) == set(document["paths"])

        # Try the first example from the page, as a person would.
        page.value("document.querySelector('#operations-gather-gathernd button').click()")
        page.wait_for("document.querySelector('#operations-gather-gathernd .try-out__btn')")
        page.value("document.querySelector('#operations-gather-gathernd .try-out__btn').click()")
        page.wait_for("document.querySelector('#operations-gather-gathernd .execute')")
        page.value("document.querySelector('#operations-gather-gathernd .execute').click()")
        page.wait_for("document.querySelector('#operations-gather-gathernd .live-responses-table .response')")
        answered = page.value(
            "document.querySelector('#operations-gather-gathernd .live-responses-table .response').innerText"
        )
        assert answered.startswith("200"), answered
        assert '"shape"' in answered

        urls = [event["request"]["url"] for event in page.named("Network.requestWillBeSent")]
        assert len(urls) >= 5
        assert {urlsplit(url).hostname for url in urls if not url.startswith("data:")} == {NAME}
        assert not page.named("Network.loadingFailed")
        assert all(event["response"]["status"] < 400 for event in page.named("Network.responseReceived"))
        assert not page.named("Runtime.exceptionThrown")
        assert not [event for event in page.named("Log.entryAdded") if event["entry"]["level"] == "error"]
