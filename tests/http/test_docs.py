"""The pages for people: they load nothing from elsewhere, and tell a browser to see to that."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from app.api.routes.health_and_pages import WEB
from app.errors import CODES

PAGES = ("/", "/docs", "/errors", *(f"/errors/{code}" for code in CODES))
FILES = sorted(file.name for file in WEB.iterdir() if not file.name.endswith(".html"))
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}


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


def test_pages_load_from_here_and_their_links_lead_somewhere(client: httpx.Client) -> None:
    named: dict[str, str] = {}
    for page in PAGES:
        answer = client.get(page)
        assert answer.status_code == 200
        found = Urls()
        found.feed(answer.text)
        for url in found.loads + found.links:
            assert is_own(url), f"{page} names {url}"
            if not url.startswith(("data:", "#")):
                named[urljoin(page, url).partition("#")[0]] = page
    for url, page in named.items():
        assert client.get(url).status_code == 200, f"{page} leads to {url}"


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
    assert {"text/javascript", "text/css", "image/svg+xml"} <= kinds


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_page_has_its_type_and_names_only_files_that_are_there(client: httpx.Client, name: str) -> None:
    answer = client.get(f"/assets/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, TYPES[name.rpartition(".")[2]])
    assert not re.search(r"(https?:)?//\w+\.\w+", answer.text.replace('"http://www.w3.org/2000/svg"', "")), name
    assert set(re.findall(r'^(?:import|export) .* from "\./(.*)";$', answer.text, re.MULTILINE)) <= set(FILES)


@pytest.mark.parametrize("path", ["/", "/docs", "/errors", "/errors/internal", "/assets/main.js", "/favicon.ico"])
def test_a_page_is_asked_for_again_by_its_etag_and_runs_no_script_but_ours(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    again = client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(path, headers={"if-none-match": '"another"'}).content == answer.content
    if answer.headers["content-type"].startswith("text/html"):
        inline = re.findall(r"<script(?![^>]*\bsrc=)([^>]*)>", answer.text)
        assert all('type="application/json"' in attributes for attributes in inline)
        assert not re.search(r"<style|\son\w+=|\sstyle=", answer.text)


@pytest.mark.parametrize("path", ["/assets/nothing.js", "/assets/index.html", "/assets/..%2Fhealth.py", "/docs/x.css"])
def test_other_files_are_not_found(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404
