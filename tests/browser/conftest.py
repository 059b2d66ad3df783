"""Pages in Debian's Chromium, driven by Playwright: it reaches this machine under one name and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.http.conftest import Start, start
from tests.http.server import Server
from tests.http.tensors import put_raw
from tests.needs import skip_without

if TYPE_CHECKING:  # reading it takes longer than all that `make test` runs here
    from playwright.sync_api import Browser, Page

__all__ = ["start"]

NAME = "gather.test"
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")  # while Playwright runs, no other test of the process can run an event loop
def browser() -> Iterator[Browser]:
    """A browser without windows."""
    skip_without(chromium="chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=[
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                f"--host-resolver-rules=MAP {NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )
        yield running
        running.close()


@pytest.fixture(scope="session")
def server(start: Start) -> Iterator[Server]:
    """A server that is reached under a name, as most are."""
    with start("--allowed-hosts", NAME) as running:
        yield running


@contextmanager
def watched(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page of which each request went to this machine, none failed unasked, and no script broke."""
    context = browser.new_context(**options)
    context.set_default_timeout(60_000)
    page = context.new_page()
    hosts: set[str | None] = set()
    broken: list[str] = []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on(
        "console",
        # A browser reports each answer of 400 and above; the page shows those to its reader.
        lambda message: (
            broken.append(message.text)
            if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource")
            else None
        ),
    )
    try:
        yield page
        assert not broken, broken
        assert hosts <= {NAME, "127.0.0.1"}, hosts
    finally:
        context.close()


def until(page: Page, script: str, within: float = 60) -> None:
    """Wait until `script` is true. Playwright's own waiting needs what the pages' Content-Security-Policy forbids."""
    end = monotonic() + within
    while not page.evaluate(script):
        assert monotonic() < end, f"never: {script}"
        sleep(0.05)


def go_to(page: Page, view: str) -> None:
    """Go to a view of the front page by its link, and wait for it."""
    page.get_by_role("navigation").get_by_role("link", name=view).click()
    page.locator(f"[data-view={view.lower()}]").wait_for()


@pytest.fixture
def page(open_page: Open) -> Page:
    """The page at /, which the cases of a table share."""
    return open_page()


@pytest.fixture
def many_tensors(server: Server) -> Iterator[None]:
    """One tensor more than a page of the list has: many-000 to many-100."""
    client = server.shared_client()
    names = [f"many-{number:03d}" for number in range(101)]
    for name in names:
        put_raw(client, name, np.zeros(1, np.float32))
    yield
    for name in names:
        client.delete(f"/tensors/{name}")


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Open]:
    """Opens a path of the server, or of another one: `open_page("/docs", server=other, color_scheme="dark")`."""
    opened = []

    def begin(path: str = "/", *, server: Server = server, **options: Any) -> Page:
        manager = watched(browser, **options)
        page = manager.__enter__()
        opened.append(manager)
        page.goto(f"http://{NAME}:{server.port}{path}")
        return page

    yield begin
    for manager in opened:
        manager.__exit__(None, None, None)
