"""The playground of the page at / in a browser: a gather by mouse and by keyboard, its drawing, errors and code."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.browser.conftest import NAME, Open, until
from tests.for_each import for_each
from tests.http.server import Server
from tests.http.tensors import put_raw
from tests.needs import skip_without

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow


def cells(page: Page, part: str) -> list[str]:
    """The texts of the drawn elements of data, indices or output."""
    return page.locator(f"#{part}-grid [data-flat]").all_inner_texts()


def cell(page: Page, part: str, flat: int) -> Locator:
    return page.locator(f'#{part}-grid [data-flat="{flat}"]')


def lit(page: Page) -> set[tuple[str, int]]:
    """Which elements are lit up, as (part, flat position)."""
    found = page.evaluate(
        "[...document.querySelectorAll('.lit')].map(e => [e.closest('.grid').id.split('-')[0], +e.dataset.flat])"
    )
    return {(part, flat) for part, flat in found}


def wait_for_output(page: Page) -> list[str]:
    until(page, "document.getElementById('outcome').textContent")
    return cells(page, "output")


def fill(page: Page, operator: str, data: tuple[str, Any], indices: tuple[str, Any], parameter: int = 0) -> None:
    """Put a gather into the form as a person would."""
    page.get_by_role("radio", name=operator, exact=True).check(force=True)
    page.locator("#data-dtype").select_option(data[0])
    page.locator("#data-values").fill(data[1] if isinstance(data[1], str) else json.dumps(data[1]))
    page.locator("#indices-dtype").select_option(indices[0])
    page.locator("#indices-values").fill(json.dumps(indices[1]))
    page.locator("#parameter").fill(str(parameter))


def test_the_first_gather_by_mouse_and_by_keyboard(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Gather", exact=True).click()
    assert wait_for_output(page) == ["0.0", "12.0", "23.0"]
    page.reload()
    page.wait_for_selector("#data-grid [data-flat]")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "run":
            break
    page.keyboard.press("Enter")
    assert wait_for_output(page) == ["0.0", "12.0", "23.0"]
    # On to the drawing: indices, data, output are a stop each; the arrows move within one.
    for part in ("indices", "data", "output"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('.grid').id") == f"{part}-grid"
    page.keyboard.press("ArrowRight")
    assert lit(page) == {("output", 1), ("data", 6), ("indices", 2), ("indices", 3)}
    assert "data[1, 2]" in page.locator("#drawing-story").inner_text()
    page.keyboard.press("End")
    assert ("data", 11) in lit(page)
    page.locator("#data-values").press("Control+Enter")
    wait_for_output(page)


def test_what_is_pointed_at_lights_up_with_its_source_and_its_tuple(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Rows", exact=True).click()
    assert wait_for_output(page) == list(map(str, [30, 31, 32, 33, 0, 1, 2, 3, 20, 21, 22, 23]))
    cell(page, "output", 5).hover()
    assert lit(page) == {("output", 5), ("data", 1), ("indices", 1)}
    assert page.locator("#source-lines path").count() == 1
    cell(page, "indices", 2).hover()
    assert lit(page) == {("indices", 2), *(("data", 8 + i) for i in range(4)), *(("output", 8 + i) for i in range(4))}
    cell(page, "data", 13).hover()
    assert lit(page) == {("data", 13), ("output", 1), ("indices", 0)}
    page.locator("#playground-title").hover()
    assert lit(page) == set()


def test_a_wrong_index_is_marked_at_its_cell_with_the_text_of_the_error(open_page: Open, server: Server) -> None:
    page = open_page()
    fill(page, "gathernd", ("float32", [[0, 1], [2, 3]]), ("int64", [[0, 0], [1, 7], [-3, 1]]))
    page.locator("#run").click()
    page.wait_for_selector("#problem:not([hidden])")
    wrong = page.evaluate("[...document.querySelectorAll('.wrong')].map(e => [e.closest('.grid').id, e.dataset.flat])")
    assert wrong == [["indices-grid", "3"], ["indices-grid", "4"]]
    body = {"data": {"dtype": "float32", "values": [[0, 1], [2, 3]]},
            "indices": {"dtype": "int64", "values": [[0, 0], [1, 7], [-3, 1]]}}  # fmt: skip
    detail = server.shared_client().post("/gathernd", json=body).json()["detail"]
    assert "indices[1,1] = 7" in detail
    assert page.locator("#problem .problem-text").inner_text() == detail
    assert page.locator("#indices-reasons p").all_inner_texts() == [
        "indices[1, 1] = 7 is outside [-2, 1]", "indices[2, 0] = -3 is outside [-2, 1]",
    ]  # fmt: skip
    assert detail in str(cell(page, "indices", 3).get_attribute("aria-label"))
    # Mended, the marks are gone.
    page.locator("#indices-values").fill("[[0, 0], [1, 1]]")
    assert page.locator(".wrong, [aria-invalid], #problem:not([hidden])").count() == 0
    page.locator("#run").click()
    assert wait_for_output(page) == ["0.0", "3.0"]


@for_each(
    ("change", "control", "code"),
    [
        (("#parameter", "9"), "parameter", "batch_dims_out_of_range"),
        (("#data-values", "[[0, 1.5], [2, 3]]"), "data-values", "value_not_representable"),
        (("#data-values", "[[0, 1], [2]]"), "data-values", "element_count_mismatch"),
    ],
)
def test_other_errors_are_shown_at_what_caused_them(
    page: Page, change: tuple[str, str], control: str, code: str
) -> None:
    fill(page, "gathernd", ("int32", [[0, 1], [2, 3]]), ("int64", [[0, 0]]))
    page.locator(change[0]).fill(change[1])
    page.locator("#run").click()
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator("#problem .error-link").inner_text() == code
    invalid = page.evaluate("[...document.querySelectorAll('form [aria-invalid]')].map(e => e.id)")
    assert invalid == [control]


@for_each(
    ("typed", "place", "hint"),
    [
        ("[[0, 0], [1, ]]", "]", "Leave out the comma"),
        ("[[0, 0], [1, 1]", "", "Write JSON"),
        ("[[0, x]]", "x", "Write JSON"),
    ],
)
def test_a_typing_mistake_is_marked_in_the_field_at_its_place_and_nothing_is_sent(
    page: Page, typed: str, place: str, hint: str
) -> None:
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.locator("#indices-values").fill(typed)
    page.locator("#run").click()
    page.locator("#indices-values[aria-invalid]").wait_for()
    selected = "(e => e.value.slice(e.selectionStart, e.selectionEnd))(document.activeElement)"
    assert page.evaluate(f"document.activeElement.id + ':' + {selected}") == f"indices-values:{place}"
    assert page.locator("#problem mark").text_content() == (place or " ")
    told = page.locator("#problem").inner_text()
    assert "Indices, line" in told
    assert hint in told
    assert not [url for url in sent if "/gathernd" in url]
    page.locator("#indices-values").fill("[[0, 0]]")
    assert page.locator("#problem").is_hidden()
    page.locator("#run").click()
    assert wait_for_output(page) == ["0.0"]


def test_a_scatter_is_drawn_with_its_updates(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Scatter", exact=True).first.click()
    assert wait_for_output(page) == ["0.0", "4.0", "0.0", "0.0", "0.0", "5.0"]
    cell(page, "output", 1).hover()
    written = {("updates", 0), ("updates", 2)}
    assert lit(page) == {("output", 1), ("data", 1), *written, *(("indices", at) for at in (0, 1, 4, 5))}
    story = page.locator("#drawing-story").inner_text()
    assert all(part in story for part in ("data[0, 1]", "updates[0]", "updates[2]", "add"))
    cell(page, "updates", 1).hover()
    assert lit(page) == {("updates", 1), ("output", 5), ("indices", 2), ("indices", 3)}
    page.locator("#reduction").select_option("none")
    page.locator("#run").click()
    assert wait_for_output(page) == ["0.0", "3.0", "0.0", "0.0", "0.0", "5.0"]
    page.locator("#updates-values").fill("[1, 5]")
    page.locator("#run").click()
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator("#problem .error-link").inner_text() == "updates_shape_mismatch"


@for_each(
    ("dtype", "typed", "drawn"),
    [
        ("int64", "[9007199254740993, -9223372036854775808]", ["-9223372036854775808", "9007199254740993"]),
        ("string", '["<img src=x onerror=alert(1)>", "é"]', ["é", "<img src=x onerror=alert(1)>"]),
        ("complex64", "[[1, -2], [0, 0.5]]", ["0.0+0.5i", "1.0-2.0i"]),
        ("bool", "[true, false]", ["false", "true"]),
        ("float32", '["NaN", 1e-3]', ["0.001", "NaN"]),
    ],
)
def test_values_are_drawn_exactly_and_as_text(page: Page, dtype: str, typed: str, drawn: list[str]) -> None:
    fill(page, "gather", (dtype, typed), ("int64", [1, 0]))
    page.locator("#run").click()
    assert wait_for_output(page) == drawn
    assert page.locator(".grid img").count() == 0


def run_python(page: Page) -> str:
    """What the program in Python that the page shows prints."""
    program = str(page.locator("#python-code").text_content()).replace(f"//{NAME}:", "//127.0.0.1:")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


def test_the_code_to_copy_gives_the_same_answer(open_page: Open, server: Server) -> None:
    skip_without(curl="curl")
    page = open_page()
    fill(page, "gather", ("string", '["it\'s", "\\"quoted\\""]'), ("int64", [[1], [0]]), 0)
    page.locator("#run").click()
    assert wait_for_output(page) == ['"quoted"', "it's"]
    curl = page.locator("#curl-code").inner_text()
    assert f"http://{NAME}:{server.port}/gather " in curl
    here = curl.replace(f"//{NAME}:", "//127.0.0.1:")  # the name is the browser's alone
    done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["output"]["values"] == ['"quoted"', "it's"]
    for language in ("typescript", "java", "go"):  # tests/clients compiles and runs such programs
        assert f"http://{NAME}:{server.port}/gather" in str(page.locator(f"#{language}-code").text_content())
    page.get_by_role("button", name="Copy", exact=True).first.click()
    fill(page, "gathernd", ("bfloat16", [[0.5, 1], [2, 3]]), ("int64", [[[0]], [[7]]]), 1)
    page.locator("#dialect").select_option("openvino-8")
    page.locator("#out-of-bounds").select_option("fill")
    page.locator("#fill-value").fill('"NaN"')
    page.locator("#run").click()
    assert wait_for_output(page) == ["0.5", "NaN"]
    assert run_python(page) == "[[0.5]\n [nan]]\n"
    fill(page, "gathernd", ("float32", "[-0, 0.1]"), ("int64", [[0], [1], [7]]))
    page.locator("#output-dtype").select_option("float16")
    page.locator("#fill-value").fill("-0")
    page.locator("#run").click()
    assert wait_for_output(page) == ["-0.0", "0.099975586", "-0.0"]
    assert run_python(page) == "[-0.   0.1 -0. ]\n"


def test_a_resident_tensor_is_looked_up_and_only_what_the_answer_brought_is_drawn(
    open_page: Open, server: Server
) -> None:
    client: httpx.Client = server.shared_client()
    put_raw(client, "wide", np.arange(400_000, dtype=np.int32).reshape(100_000, 4))
    try:
        page = open_page("/#tensors")
        page.get_by_role("button", name="Try wide in the playground").click()
        page.locator("#indices-values").fill("[99999, 5]")
        page.locator("#run").click()
        assert wait_for_output(page) == [*map(str, range(399_996, 400_000)), *map(str, range(20, 24))]
        assert cells(page, "data") == [*map(str, range(20, 24)), *map(str, range(399_996, 400_000))]
        cell(page, "output", 0).hover()
        assert ("data", 399_996) in lit(page)
        assert '"tensor": "wide"' in page.locator("#curl-code").inner_text()
        assert page.locator("#answer-code").text_content() is not None
        assert (
            client.get("/tensors/wide").json()["etag"]
            in json.loads(str(page.locator("#answer-code").text_content())).values()
        )
    finally:
        client.delete("/tensors/wide")


def test_an_index_out_of_bounds_is_filled_where_the_form_asks_for_it(open_page: Open) -> None:
    page = open_page()
    page.get_by_role("button", name="Filled where wrong").click()
    assert wait_for_output(page) == ["10", "11", "12", "-1", "-1", "-1", "0", "1", "2"]
    assert "Replaced components: 1." in page.locator("#outcome").inner_text()
    cell(page, "output", 4).hover()
    assert lit(page) == {("output", 4), ("indices", 1)}
    assert "out of bounds" in page.locator("#drawing-story").inner_text()
    page.locator("#out-of-bounds").select_option("clip")
    assert page.locator("#fill-value").is_hidden()
    page.locator("#run").click()
    assert wait_for_output(page) == ["10", "11", "12", "10", "11", "12", "0", "1", "2"]
    page.locator("#out-of-bounds").select_option("fill")
    page.locator("#fill-value").fill("1.5")
    page.locator("#run").click()
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator("#fill-value").get_attribute("aria-invalid") == "true"


def test_an_output_too_large_to_draw_is_not_asked_for(open_page: Open, server: Server) -> None:
    client = server.shared_client()
    put_raw(client, "huge", np.zeros((2, 1_000_000), np.int32))
    try:
        page = open_page("/#tensors")
        page.get_by_role("button", name="Try huge in the playground").click()
        page.locator("#run").click()
        until(page, "document.getElementById('outcome').textContent.includes('too much to draw')")
        assert "12.0 MB" in page.locator("#outcome").inner_text()
    finally:
        client.delete("/tensors/huge")
