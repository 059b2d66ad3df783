"""`gathernd lookup` and `gathernd backward` against a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gathernd import Client
from tests.client.conftest import done
from tests.client.test_gathers import same
from tests.for_each import for_each
from tests.http.lookups import Given, looped

USERS = np.random.default_rng(3).standard_normal((20, 4), dtype=np.float32)
ITEMS = np.random.default_rng(4).standard_normal((30, 3), dtype=np.float32)
BAGGED, BAGS, WEIGHTS = [4, 4, 9, 1, 0], [0, 3], np.array([1, -2, 0.5, 3, 0.1], np.float32)
Run = Callable[..., Any]


@pytest.fixture
def run(run: Run, service: Client) -> Iterator[Run]:
    """Run a command in a folder with npy files, for a server with the tensors users and items."""
    np.save("rows.npy", np.array([7, 3]))
    np.save("bagged.npy", np.array(BAGGED))
    np.save("bags.npy", np.array(BAGS))
    np.save("weights.npy", WEIGHTS)
    service.put("users", USERS)
    service.put("items", ITEMS)
    yield run
    service.delete("users")
    service.delete("items")


def listing() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"rows.npy", "bagged.npy", "bags.npy", "weights.npy"}


def test_lookup_joins_rows_and_bags(run: Run) -> None:
    asked = ["lookup", "users=rows.npy", "items=bagged.npy,bags.npy", "--output", "out.npy"]
    assert done(run, *asked, "--pooling", "mean")[0] == ""
    pooled = looped(ITEMS, Given("", BAGGED, BAGS, pooling="mean"))
    assert same(np.load("out.npy"), np.concatenate((USERS[[7, 3]], pooled), axis=1))
    done(run, "lookup", "items=bagged.npy,bags.npy,weights.npy", "--output", "out.npy")
    assert same(np.load("out.npy"), looped(ITEMS, Given("", BAGGED, BAGS, WEIGHTS, "sum")))
    np.save("ended.npy", np.append(BAGS, len(BAGGED)))
    done(run, "lookup", "items=bagged.npy,ended.npy", "--include-last-offset", "--output", "out.npy")
    assert same(np.load("out.npy"), looped(ITEMS, Given("", BAGGED, BAGS, pooling="sum")))
    assert listing() == {"out.npy", "ended.npy"}


def test_lookup_without_concat_writes_a_file_for_each_feature(run: Run) -> None:
    assert done(run, "lookup", "users=rows.npy", "items=bagged.npy", "--no-concat", "--output", "out.npy")[0] == ""
    assert listing() == {"out.0.npy", "out.1.npy"}
    assert same(np.load("out.0.npy"), USERS[[7, 3]])
    assert same(np.load("out.1.npy"), ITEMS[BAGGED])


def test_lookup_prints_and_replaces_indices_out_of_bounds(run: Run) -> None:
    np.save("far.npy", np.array([0, 99]))
    refused = run("lookup", "users=rows.npy", "items=far.npy", "--output", "out.npy")
    assert refused.exit_code == 1
    assert "index_out_of_bounds" in refused.output
    assert not listing() - {"far.npy"}
    asked = ["lookup", "items=far.npy", "--out-of-bounds", "fill", "--output", "out.npy", "--fill-value"]
    assert run(*asked, "-0").exit_code == 0
    assert np.signbit(np.load("out.npy")[1]).all()
    shown = run("lookup", "items=far.npy", "--out-of-bounds", "fill", "--fill-value", "7", "--no-concat")
    assert shown.stdout.split()[-4:] == ["7.", "7.", "7.", "]]"]
    replaced = "gathernd: 1 component of the indices was out of bounds and replaced\n"
    assert shown.stderr == replaced
    assert done(run, "lookup", "items=far.npy", "--out-of-bounds", "clip", "--output", "out.npy") == ("", replaced)
    assert same(np.load("out.npy"), ITEMS[[0, 29]])


def test_backward_is_the_gradient_of_the_gather(run: Run) -> None:
    grad = np.random.default_rng(5).standard_normal((3, 4), dtype=np.float32)
    np.save("grad.npy", grad)
    np.save("tuples.npy", np.array([[2], [0], [2]]))
    np.save("entries.npy", np.array([2, 0, 2]))
    expected = np.zeros((20, 4), np.float32)
    np.add.at(expected, [2, 0, 2], grad)
    asked = ["backward", "tuples.npy", "grad.npy", "--output", "out.npy"]
    done(run, *asked, "--data-shape", "20,4")
    assert same(np.load("out.npy"), expected)
    done(run, *asked, "--tensor", "users", "--lda-coeff", "-2", "--sparse")
    assert np.load("out.indices.npy").tolist() == [[0], [2]]
    assert same(np.load("out.values.npy"), expected[[0, 2]] * np.float32(-2))
    np.save("turned.npy", np.ascontiguousarray(grad.T))
    gather = ["backward", "entries.npy", "turned.npy", "--op", "gather", "--output", "out.npy"]
    done(run, *gather, "--data-shape", "4,20", "--axis", "-1")
    assert same(np.load("out.npy"), np.ascontiguousarray(expected.T))
    np.save("batches.npy", np.array([[1], [0], [1]]))
    np.save("each.npy", np.ones(3, np.float32))
    batches = ["backward", "batches.npy", "each.npy", "--data-shape", "3,2", "--batch-dims", "1"]
    assert done(run, *batches)[0] == "[[0. 1.]\n [1. 0.]\n [0. 1.]]\n"


@for_each(
    ("arguments", "code", "text"),
    [
        ("lookup", 2, "TENSOR=INDICES"),
        ("lookup users", 2, "'users' is not of the form TENSOR=INDICES"),
        ("lookup users=rows.npy,,weights.npy", 2, "is not of the form TENSOR=INDICES"),
        ("lookup users=rows.npy --pooling sum", 2, "--pooling belongs to features with offsets"),
        ("lookup users=rows.npy --pooling none", 2, "none"),
        ("lookup users=rows.npy --include-last-offset", 2, "belongs to features with offsets"),
        ("lookup users=none.npy", 1, "none.npy"),
        ("lookup nobody=rows.npy", 1, "tensor_not_found"),
        ("lookup users=rows.npy --fill-value x", 2, "is not JSON"),
        ("lookup users=rows.npy --out-of-bounds fill --fill-value 1e400", 2, "larger than any float64"),
        ("lookup users=rows.npy items=bagged.npy", 1, "feature_mismatch"),
        ("lookup items=bagged.npy,bags.npy,weights.npy --pooling max", 1, "invalid_field"),
        ("lookup users=rows.npy --output no/such/folder.npy", 1, "No such file"),
        ("call users --op gather --keys rows.npy --axis 1", 2, "leave out --axis"),
        ("backward rows.npy weights.npy", 2, "exactly one of --data-shape"),
        ("backward rows.npy weights.npy --data-shape 5 --tensor users", 2, "exactly one of --data-shape"),
        ("backward rows.npy weights.npy --data-shape a", 2, "is not a shape"),
        ("backward rows.npy weights.npy --data-shape 5 --axis 1", 2, "--axis to --op gather"),
        (
            "backward rows.npy weights.npy --op gather --data-shape 5 --batch-dims 1",
            2,
            "--batch-dims belongs to --op gathernd or --dialect openvino-8",
        ),
        ("backward rows.npy rows.npy --data-shape 5", 1, "unsupported_dtype"),
        ("backward rows.npy weights.npy --tensor nobody", 1, "tensor_not_found"),
        ("backward rows.npy weights.npy --op gather --data-shape 5", 1, "updates_shape_mismatch"),
    ],
)
def test_a_command_that_fails_says_why(run: Run, arguments: str, code: int, text: str) -> None:
    ended = run(*arguments.split())
    assert ended.exit_code == code, ended.output
    assert text in " ".join(ended.output.replace("│", " ").split())
    assert "Traceback" not in ended.output
    assert not listing()


def test_several_files_are_written_all_or_none(run: Run, service: Client) -> None:
    service.put("halves", ITEMS.astype(ml_dtypes.bfloat16))
    refused = run("lookup", "users=rows.npy", "halves=rows.npy", "--no-concat", "--output", "out.npy")
    service.delete("halves")
    assert refused.exit_code == 1
    assert "an npy file cannot hold bfloat16" in refused.output
    assert not listing()


def test_an_error_names_what_was_typed(run: Run) -> None:
    np.save("far.npy", np.array([0, 99]))
    refused = run("lookup", "users=rows.npy", "nobody=bagged.npy")
    assert refused.exit_code == 1
    assert "  at feature 2, tensor" in refused.output.splitlines()
    far = run("lookup", "users=rows.npy", "items=far.npy")
    assert "  at feature 2, indices [1]" in far.output.splitlines(), far.output
    axis = run("call", "rows.npy", "rows.npy", "--op", "gather", "--axis", "9")
    assert "  at --axis" in axis.output.splitlines(), axis.output
    filled = run("lookup", "users=rows.npy", "--fill-value", "1")
    assert "  at --fill-value" in filled.output.splitlines(), filled.output
