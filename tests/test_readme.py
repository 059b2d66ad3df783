"""The README is short, and its first lines say when to use the service and when something else."""

from __future__ import annotations

from pathlib import Path

LINES = (Path(__file__).parents[1] / "README.md").read_text().splitlines()


def test_readme_has_150_lines_at_most() -> None:
    assert len(LINES) <= 150


def test_first_five_lines_compare_the_service_with_its_alternatives() -> None:
    first = " ".join(LINES[2:7])
    for alternative in ("Redis", "vector database", "NumPy in process", "Triton"):
        assert alternative in first
