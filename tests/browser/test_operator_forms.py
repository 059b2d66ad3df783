"""The forms of lookups and gradients of the page at / in a browser: fields, outputs, errors at the field, the code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from tests.browser.conftest import Open, go_to, until
from tests.browser.test_front_page import FITS, SIZES, violations
from tests.for_each import for_each
from tests.http.server import Server
from tests.http.tensors import put_raw, put_strings

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
ITEMS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def tables(server: Server) -> Iterator[httpx.Client]:
    client = server.shared_client()
    put_raw(client, "form-items", ITEMS)
    put_raw(client, "form-users", np.array([[0.5, 1], [2, 3]], np.float32))
    put_strings(client, "form-words", ["<b>bold</b>", "naïve"])
    yield client
    for name in ("form-items", "form-users", "form-words"):
        client.delete(f"/tensors/{name}")


def outputs(page: Page, form: str) -> list[list[str]]:
    """The texts of the elements of each output, once there is one."""
    until(page, f"document.querySelectorAll('#{form}-outputs .tensor').length")
    grids = page.locator(f"#{form}-outputs .grid").all()
    return [grid.locator("[data-flat]").all_inner_texts() for grid in grids]


def captions(page: Page, form: str) -> list[str]:
    return page.locator(f"#{form}-outputs h2").all_inner_texts()


def lookup_page(open_page: Open) -> Page:
    page = open_page("/#lookups")
    until(page, "document.querySelectorAll('#lookup-0-tensor option').length")
    return page


def refused(page: Page, form: str, code: str, control: str | None) -> None:
    """The form shows this error, right behind the control that it is about, or at its end."""
    page.locator(f"#{form}-run").click()
    page.locator(f"#{form}-problem").wait_for()
    assert page.locator(f"#{form}-problem .error-link").inner_text() == code
    assert page.locator(f"#{form}-problem .hint").inner_text()
    invalid = page.evaluate(f"[...document.querySelectorAll('#{form}-form [aria-invalid]')].map(e => e.id)")
    assert invalid == ([] if control is None else [control])
    if control is not None:
        assert page.locator(f"#{control} + #{form}-problem").count() == 1
        assert page.locator(f"#{control}").get_attribute("aria-describedby") == f"{form}-problem"
    assert page.locator(f"#{form}-outputs .tensor").count() == 0


@pytest.fixture
def two_features(open_page: Open, tables: httpx.Client) -> Page:
    """The form of a lookup with rows of one table and bags of another."""
    page = lookup_page(open_page)
    page.locator("#lookup-0-tensor").select_option("form-items")
    page.locator("#lookup-0-indices").fill("[3, 0]")
    page.get_by_role("button", name="Add a feature").click()
    page.locator("#lookup-1-tensor").select_option("form-users")
    page.locator("#lookup-1-pooling").select_option("sum")
    return page


def fill_and_refuse(page: Page, form: str, changes: dict[str, str], code: str, control: str) -> None:
    """The form refuses what its fields then say, and forgets that once they are as before."""
    fields = {part: page.locator(f"#{form}-{part}") for part in changes}
    before = {part: field.input_value() for part, field in fields.items()}
    for part, field in fields.items():
        field.fill(changes[part])
    refused(page, form, code, control)
    for part, field in fields.items():
        field.fill(before[part])
    assert page.locator(f"#{form}-problem").count() == 0


def test_a_lookup_of_several_tables_with_pooling(open_page: Open, tables: httpx.Client) -> None:
    page = lookup_page(open_page)
    page.locator("#lookup-0-tensor").select_option("form-items")
    page.locator("#lookup-0-indices").fill("[3, 0]")
    page.get_by_role("button", name="Look up").click()
    assert outputs(page, "lookup") == [["9.0", "10.0", "11.0", "0.0", "1.0", "2.0"]]
    assert captions(page, "lookup") == ["output float32 [2, 3]"]
    page.get_by_role("button", name="Add a feature").click()
    assert page.locator("#lookup-outputs .tensor").count() == 0  # of another request
    page.locator("#lookup-1-tensor").select_option("form-users")
    page.locator("#lookup-1-dtype").select_option("int32")
    assert page.locator("#lookup-1-offsets").is_hidden()
    page.locator("#lookup-1-pooling").select_option("sum")
    page.locator("#lookup-1-indices").fill("[1, 1, 0]")
    page.locator("#lookup-1-offsets").fill("[0, 2]")
    page.locator("#lookup-1-weights").fill("[1, 0.5, 2]")
    page.locator("#lookup-run").click()
    assert outputs(page, "lookup") == [["9.0", "10.0", "11.0", "3.0", "4.5", "0.0", "1.0", "2.0", "1.0", "2.0"]]
    page.locator("#lookup-concat").uncheck()
    page.locator("#lookup-1-pooling").select_option("mean")
    assert page.locator("#lookup-1-weights").is_hidden()
    page.locator("#lookup-run").click()
    assert outputs(page, "lookup")[1] == ["2.0", "3.0", "0.5", "1.0"]
    assert captions(page, "lookup") == ["outputs[0] float32 [2, 3]", "outputs[1] float32 [2, 2]"]
    page.get_by_role("button", name="Remove feature 0").click()
    page.locator("#lookup-1-tensor").select_option("form-words")
    page.locator("#lookup-1-pooling").select_option("none")
    page.locator("#lookup-1-indices").fill("[1, 0, 7]")
    page.locator("#lookup-out-of-bounds").select_option("fill")
    page.locator("#lookup-fill-value").fill('"none"')
    page.locator("#lookup-1-indices").press("Control+Enter")
    assert outputs(page, "lookup") == [["naïve", "<b>bold</b>", "none"]]
    assert "Replaced components: 1." in page.locator("#lookup-outcome").inner_text()
    assert page.locator("#lookup-outputs b").count() == 0


@for_each(
    ("changes", "code", "control"),
    [
        ({"0-indices": "[0, 9]"}, "index_out_of_bounds", "lookup-0-indices"),
        ({"1-indices": "[0, 1"}, "malformed_request", "lookup-1-indices"),
        ({"1-offsets": "[1, 2]"}, "offsets_invalid", "lookup-1-offsets"),
        ({"1-weights": "[1]"}, "updates_shape_mismatch", "lookup-1-weights"),
        ({"0-indices": "[0]"}, "feature_mismatch", "lookup-1-tensor"),
        ({"fill-value": "[1]"}, "value_not_representable", "lookup-fill-value"),
    ],
)
def test_errors_of_a_lookup_are_shown_at_their_field(
    two_features: Page, changes: dict[str, str], code: str, control: str
) -> None:
    if "fill-value" in changes:
        two_features.locator("#lookup-out-of-bounds").select_option("fill")
    fill_and_refuse(two_features, "lookup", changes, code, control)


def test_a_gradient_dense_and_sparse(open_page: Open, tables: httpx.Client) -> None:
    page = open_page("/#gradients")
    until(page, "document.querySelectorAll('#backward-tensor option').length > 1")
    page.get_by_role("button", name="Add up").click()
    assert outputs(page, "backward") == [["10.0", "20.0", "0.0", "0.0", "0.0", "0.0", "101.0", "202.0"]]
    assert captions(page, "backward") == ["grad_data float32 [4, 2]"]
    page.locator("#backward-sparse").check()
    page.locator("#backward-lda-coeff").fill("-0.5")
    page.locator("#backward-run").click()
    assert outputs(page, "backward") == [["0", "3"], ["-5.0", "-10.0", "-50.5", "-101.0"]]
    assert captions(page, "backward") == ["grad_indices int64 [2, 1]", "grad_values float32 [2, 2]"]
    page.locator("#backward-operator").select_option("gather")
    assert page.locator("#backward-parameter-name").inner_text() == "axis"
    page.locator("#backward-sparse").uncheck()
    page.locator("#backward-lda-coeff").fill("1")
    page.locator("#backward-indices").fill("[2, 0]")
    page.locator("#backward-indices-dtype").select_option("int32")
    page.locator("#backward-parameter").fill("1")
    page.locator("#backward-grad-output").fill("[[1, 2], [3, 4], [5, 6], [7, 8]]")
    page.locator("#backward-tensor").select_option("form-items")
    assert page.locator("#backward-data-shape").is_hidden()
    page.locator("#backward-run").click()
    assert outputs(page, "backward") == [
        ["2.0", "0.0", "1.0", "4.0", "0.0", "3.0", "6.0", "0.0", "5.0", "8.0", "0.0", "7.0"]
    ]
    assert '"tensor": "form-items"' in page.locator("#backward-curl").inner_text()


def test_the_forms_are_accessible(open_page: Open, tables: httpx.Client) -> None:
    page = open_page("/#lookups", color_scheme="dark", viewport=SIZES["390"])
    until(page, "document.querySelectorAll('#lookup-0-tensor option').length")
    page.get_by_role("button", name="Add a feature").click()
    page.locator("#lookup-1-pooling").select_option("sum")
    page.locator("#lookup-concat").uncheck()
    page.locator("#lookup-run").click()
    outputs(page, "lookup")
    assert violations(page) == []
    page.locator("#lookup-0-indices").fill("[99]")
    page.locator("#lookup-run").click()
    page.locator("#lookup-problem").wait_for()
    assert violations(page) == []
    assert page.evaluate(FITS), "it scrolls sideways"
    go_to(page, "Gradients")
    page.locator("#backward-run").click()
    outputs(page, "backward")
    assert violations(page) == []
    assert page.evaluate(FITS), "it scrolls sideways"
