"""What commands print on a terminal; what they print in a pipe is in the tests of each command."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from gathernd_cli.tables import Column, Field, human_bytes, print_fields, print_rows, short_etag


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_rows_are_a_table_and_values_are_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", terminal)
    columns = (Column("name"), Column("size", human_bytes, right=True), Column("etag", short_etag))
    print_rows(columns, [("items[b]", "256000000", '"0123456789abcdef-1"'), ("x", "48", '"ab"')])
    print_fields((Field("ready", "yes"), Field("tensor_bytes", "1500000", human_bytes)))
    assert [line.split() for line in terminal.getvalue().splitlines()] == [
        ["name", "size", "etag"], ["items[b]", "256", "MB", "0123456789ab"], ["x", "48", "B", "ab"],
        ["ready", "yes"], ["tensor_bytes", "1.5", "MB"],
    ]  # fmt: skip
