"""What a body that is no JSON is told, by what makes it none."""

from __future__ import annotations

import pytest

from tests.for_each import for_each
from tests.wire.json_requests import framing_fault

pytestmark = pytest.mark.usefixtures("compiled")

HINTS = {
    b"": "Send a JSON object as the body, which is empty.",
    b" \n": "Send a JSON object as the body, which is empty.",
    b'{"a": NaN}': 'Write "NaN" in place of NaN at byte 6.',
    b'{"a": nan}': 'Write "NaN" in place of nan at byte 6.',
    b'{"a": -inf}': 'Write "-Infinity" in place of -inf at byte 6.',
    b'{"a": [Infinity]}': 'Write "Infinity" in place of Infinity at byte 7.',
    b'{"a": True}': "Write true in place of True at byte 6.",
    b'{"a": None}': "Write null in place of None at byte 6.",
    b'{"a": yes}': 'Write texts in double quotes: "yes" in place of yes at byte 6.',
    b"[1,]": "Leave out the comma before the ] at byte 3.",
    b'{"a": 1 , }': "Leave out the comma before the } at byte 10.",
    b"{'a': 1}": "Write strings in double quotes: \"…\" in place of '…' at byte 1.",
    b"{a: 1}": 'Write "a" in double quotes at byte 1.',
    b"// x\n{}": "Leave out the comment at byte 0, which JSON does not allow.",
    b'{"a": 1 /* x */}': "Leave out the comment at byte 8, which JSON does not allow.",
    b"# x\n{}": "Leave out the comment at byte 0, which JSON does not allow.",
    b"\xef\xbb\xbf{}": "Leave out the byte order mark, the first three bytes of the body.",
    '{"a": 1}'.encode("utf-16"): "Encode the body as UTF-8, with one byte for each ASCII character.",
    '{"a": 1}'.encode("utf-16-be"): "Encode the body as UTF-8, with one byte for each ASCII character.",
    b'{"a": "\xe4"}': "Encode the body as UTF-8: the byte 0xe4 at byte 7 does not begin a character.",
    b'{"a": [1': "Send the whole body: it ends at byte 8, before everything that it opened is closed.",
    b'{"a": "x': "Close the text that begins at byte 6 with a double quote where it ends, or send the whole body: it "
    "ends at byte 8.",
    b'{"a": 1_000}': "Leave out the _ at byte 7: a number has no separators.",
    b'{"a": 2, 2], "b": 1}': "Put a [ at byte 6, before the first value: several values need a list in brackets.",
    b'{"a": items@1"}': "Put a double quote before items@1 at byte 6.",
    b'{"a": items@1}': 'Write texts in double quotes: "items@1" in place of items@1 at byte 6.',
    b'{"a": [' + b"1, " * 40 + b'1], "b" [2]}': "Put a colon before what begins at byte 135.",
    b'{"a": "b": 1}}': "Put a { before byte 6, since names with colons stand in an object.",
    b'{"a": [{"b": 1}, "b": 2}]}': "Put a { before byte 17, since names with colons stand in an object.",
    b'{"a": ["b": 2}]}': "Put a { before byte 7, since names with colons stand in an object.",
    b'[{"a": [' + b"1, " * 40 + b'1], {"b": 1}]': "Put a } before the comma ahead of byte 132 if the object ends "
    "there, or a name in double quotes and a colon before what begins there.",
    b'{"a": 01}': "Write 1 in place of 01 at byte 6.",
    b'{"a": +1.5}': "Write 1.5 in place of +1.5 at byte 6.",
    b'{"a": .5e3}': "Write 0.5e3 in place of .5e3 at byte 6.",
    b'{"a": -1.}': "Write -1 in place of -1. at byte 6.",
    b'{"a": 0x1F}': "Write a plain decimal number, as 16 or 1.5e3, where x stands at byte 7.",
    b'{"a": 1 "b": 2}': "Put a comma before what begins at byte 8, or send one JSON document and no more.",
    b'{"a" 1}': "Put a colon before what begins at byte 5.",
    b"{}{}": "Put a comma before what begins at byte 2, or send one JSON document and no more.",
    b"[1,,2]": "Put a value before the , at byte 3, or leave out what needs one.",
    b'{"a":}': "Put a value before the } at byte 5, or leave out what needs one.",
    b'{"a": [1}': "Put a ] before the } at byte 8, to close the list that is open there.",
    b'{"a": [1]}}': "Leave out the } at byte 10, which closes nothing.",
    b'{"a": "b\nc"}': "Write the control character at byte 8 as \\u000a, or leave it out.",
    b'{"a": "C:\\x"}': "Write \\\\ for a backslash at byte 10: the characters after it are not an escape.",
    b"a=1&b=2": "Send the fields as one JSON object and not as a form.",
    b"hello": "Send one JSON object as the body, which begins with hello.",
    b"[" * 600 + b"]" * 600: "Nest lists and objects at most 512 deep.",
    b'{"a": 1, "a": 2}': "Give 'a' once in its object.",
    b'{"b": {"\\u0061": 1, "a": [2]}}': "Give 'a' once in its object.",
    b'{"' + b"k" * 40 + b'": 1, "' + b"k" * 40 + b'": 2}': f"Give '{'k' * 24}…' once in its object.",
    b'{"a": 1, "b": [' + b"1," * 50_000 + b'1], "a": 2}': "Use each key only once in an object.",
    b'{"a": 1, "a": ' + b"1" * 5000 + b"}": "Give 'a' once in its object.",
}


@for_each("body", HINTS)
def test_a_body_that_is_no_json_is_told_what_makes_it_none(body: bytes) -> None:
    for given in (body, memoryview(body)):
        fault = framing_fault(given)
        assert fault is not None
        assert fault[1] == HINTS[body]


@for_each("place", range(24))
def test_every_byte_that_spoils_a_body_gets_a_short_hint(place: int) -> None:
    whole = b'{"a": [1.5, "x", true]} '
    for byte in range(256):
        body = whole[:place] + bytes([byte]) + whole[place + 1 :]
        fault = framing_fault(body)
        assert fault is None or (str(fault[1]).endswith(".") and len(str(fault[1])) < 160)
