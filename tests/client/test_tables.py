"""What commands print on a terminal and in a pipe."""

from __future__ import annotations

import sys
from io import StringIO

import pytest

from gathernd_cli.tables import Column, Field, human_bytes, print_fields, print_rows, short_etag

COLUMNS = (Column("name"), Column("size", human_bytes, right=True), Column("etag", short_etag))
ROWS = [("items[b]", "256000000", '"0123456789abcdef-1"'), ("x", "48", '"ab"')]
FIELDS = (Field("ready", "yes"), Field("tensor_bytes", "1500000", human_bytes))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


def test_in_a_pipe_rows_are_lines_of_full_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(COLUMNS, ROWS)
    print_fields(FIELDS)
    assert capsys.readouterr().out == (
        'items[b]\t256000000\t"0123456789abcdef-1"\nx\t48\t"ab"\nready\tyes\ntensor_bytes\t1500000\n'
    )


def test_on_a_terminal_rows_are_a_table_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    print_rows(COLUMNS, ROWS)
    lines = [line.split() for line in terminal.getvalue().splitlines()]
    assert lines == [["name", "size", "etag"], ["items[b]", "256", "MB", "0123456789ab"], ["x", "48", "B", "ab"]]


def test_on_a_terminal_fields_have_human_values(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    print_fields(FIELDS)
    assert [line.split() for line in terminal.getvalue().splitlines()] == [
        ["ready", "yes"],
        ["tensor_bytes", "1.5", "MB"],
    ]
