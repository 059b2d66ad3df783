"""The page shows the request that it draws in further languages; tests/clients compiles and runs such programs."""

from __future__ import annotations

import pytest

from tests.browser.conftest import NAME, Open
from tests.http.server import Server


@pytest.mark.parametrize("language", ["typescript", "java", "go"])
def test_a_program_has_the_address_and_the_fields_of_the_request(
    open_page: Open, server: Server, language: str
) -> None:
    page = open_page("/#playground")
    page.locator("#dialect").select_option("openvino-8")
    program = page.locator(f"#{language}-code").text_content() or ""
    assert f"http://{NAME}:{server.port}/gathernd" in program
    assert r"\"dialect\"" in program.replace(" ", "")
    assert "openvino-8" in program
