"""Hints for a body that is not JSON, based on the place of its first fault.

To find a hint, this module examines a few bytes around the place and the brackets in a few thousand bytes before it. It
examines keys and strings only in short bodies, so that time and memory are bounded for every body.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from app.json_text.constants import MAX_DEPTH
from app.tensors.buffer_type import Buffer

_WINDOW: Final = 64
_SHOWN: Final = 24
_SHORT_BODY: Final = 1 << 14
"""Maximum number of bytes to read again: in a body, to find a repeated key or an unterminated string; before a place,
to find brackets.
"""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF16_OR_32: Final = (b"\xff\xfe", b"\xfe\xff", b"\x00")
_NAME: Final = re.compile(rb"[+-]?[A-Za-z_$][A-Za-z0-9_$]*")
_WORD: Final = re.compile(rb'[^\s,:{}\[\]"\x00-\x1f\x80-\xff]*')
"""Matches a string that lacks its quotes, up to its end."""
_UNDERSCORE: Final = re.compile(rb"_[0-9]")
_TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_NUMBER: Final = re.compile(rb"[+-]?[0-9.][0-9A-Za-z.+-]*")
_NAMES: Final = {
    b"nan": '"NaN"',
    b"inf": '"Infinity"',
    b"infinity": '"Infinity"',
    b"true": "true",
    b"false": "false",
    b"none": "null",
    b"null": "null",
    b"undefined": "null",
}
"""JSON's spelling of names that other languages write, keyed in lowercase."""
_VALUES: Final = re.compile(rb":\s*((?:-?[0-9][0-9.eE+-]*\s*,\s*)*-?[0-9][0-9.eE+-]*)\s*,?$")
"""Comma-separated numbers after a colon, up to the place of a fault."""
_LIST_END: Final = re.compile(rb"[-0-9., eE+]*\]")
_CLOSING: Final = {b"[": "]", b"{": "}"}
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_SPACE: Final = b" \t\r\n"
_FORM: Final = re.compile(rb"[A-Za-z0-9_%.-]{1,64}=")


def hint(body: Buffer, place: int, end: int) -> str:
    """Return a one-sentence hint for a body with a fault at byte `place`; `end` is the end without trailing white
    space.
    """
    start = bytes(body[:_WINDOW])
    if end == 0:
        return "Send a JSON object as the body, which is empty."
    if start.startswith(_BYTE_ORDER_MARK):
        return "Leave out the byte order mark, the first three bytes of the body."
    if start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= len(body) - 8:
        return "Send 'Content-Type: application/x-safetensors', since the body looks like that format."
    if start.startswith(_UTF16_OR_32) or start[1:2] == b"\0":
        return "Encode the body as UTF-8, with one byte for each ASCII character."
    if place == 0 and _FORM.match(start):
        return "Send the fields as one JSON object and not as a form."
    before = bytes(body[max(0, place - _WINDOW) : place])
    spaces = len(before) - len(before.rstrip(_SPACE))
    before = before.rstrip(_SPACE)
    there = bytes(body[place : min(end, place + _WINDOW)])
    at = f"at byte {place}"
    if not there:
        if (opened := _open_text(body, end)) is not None:
            return (
                f"Close the text that begins at byte {opened} with a double quote where it ends, or send the whole "
                f"body: it ends {at}."
            )
        return f"Send the whole body: it ends {at}, before everything that it opened is closed."
    first = there[:1]
    if first in (b"]", b"}") and before[-1:] == b",":
        return f"Leave out the comma before the {first.decode()} {at}."
    if first == b"," or (first in (b"]", b"}") and before[-1:] == b":"):
        return f"Put a value before the {first.decode()} {at}, or leave out what needs one."
    if (first == b"]" or _NUMBER.match(there)) and (values := _VALUES.search(before)) is not None:
        opens = place - spaces - len(before) + values.start(1)
        closing = "" if _LIST_END.match(there) else ", and a ] behind the last"
        return f"Put a [ at byte {opens}, before the first value{closing}: several values need a list in brackets."
    if first == b"(":
        return f"Write [ in place of ( {at}: lists need brackets."
    around = _innermost_bracket(bytes(body[max(0, place - _SHORT_BODY) : place]))
    if first in (b"]", b"}"):
        if around:
            what = "list" if around == b"[" else "object"
            return f"Put a {_CLOSING[around]} before the {first.decode()} {at}, to close the {what} that is open there."
        return f"Leave out the {first.decode()} {at}, which closes nothing."
    if first == b"'":
        return f"Write strings in double quotes: \"…\" in place of '…' {at}."
    if there.startswith((b"//", b"/*")) or first == b"#":
        return f"Leave out the comment {at}, which JSON does not allow."
    if first in (b"[", b"{") and before[-1:] == b"," and around == b"{":
        return (
            f"Put a }} before the comma ahead of byte {place} if the object ends there, or a name in double quotes and "
            "a colon before what begins there."
        )
    if first in (b"[", b"{") and _is_value_expected(before):
        return f"Nest lists and objects at most {MAX_DEPTH} deep."
    return _hint_for_value(before, there, at) or _hint_for_text(before, there, place, place - spaces, around)


def _is_value_expected(before: bytes) -> bool:
    return not before or before[-1:] in b"[:,"


def _hint_for_value(before: bytes, there: bytes, at: str) -> str | None:
    """Return a hint for a name or a number that is not JSON, or None."""
    if (name := _NAME.match(there)) is not None:
        given = name[0][:_SHOWN].decode()
        sign = "-" if given.startswith("-") else ""
        known = _NAMES.get(given.lstrip("+-").lower().encode())
        if known is not None and known != given and not before.endswith(b"{"):
            corrected = known.replace('"', '"' + sign, 1)
            return f"Write {corrected} in place of {given} {at}."
        if not before:
            return f"Send one JSON object as the body, which begins with {given}."
        word = _WORD.match(there)
        assert word is not None
        given = word[0][:_SHOWN].decode()
        if before[-1:] in b"{,[:" and there[word.end() : word.end() + 1] == b'"':
            return f"Put a double quote before {given} {at}."
        if before[-1:] in (b"{", b","):
            return f'Write "{given}" in double quotes {at}.'
        if before[-1:] in (b"[", b":"):
            return f'Write texts in double quotes: "{given}" in place of {given} {at}.'
    if b"0" <= before[-1:] <= b"9" and _UNDERSCORE.match(there):
        return f"Leave out the _ {at}: a number has no separators."
    if b"0" <= before[-1:] <= b"9" and there[:1].isalpha():
        return f"Write a plain decimal number, as 16 or 1.5e3, where {there[:1].decode()} stands {at}."
    if _is_value_expected(before) and (number := _NUMBER.match(there)) is not None:
        given = number[0].decode()
        if len(given) > _SHOWN:
            return f"Write the number {at} as JSON has it: digits, and a digit on each side of the point."
        return f"Write {_corrected_number(given) or 'a decimal number'} in place of {given} {at}."
    return None


def _hint_after_text(before: bytes, there: bytes, place: int, end: int, around: bytes) -> str:
    """Return a hint for a fault after a string; `before` ends with that string, at byte `end`."""
    opens = before.rfind(b'"', 0, -1)
    ahead = before[:opens].rstrip(_SPACE)
    begins = end - len(before) + opens
    if opens >= 0 and _NAME.match(there):
        how = f"Close the text that begins at byte {begins} with a double quote where it ends"
        return f'{how}, or write \\" for each quote within it.'
    if there[:1] == b":":
        is_first = ahead[-1:] == b"["
        is_item = is_first or (around == b"[" and ahead[-1:] == b"," and ahead[:-1].rstrip(_SPACE)[-1:] == b"}")
        if opens >= 0 and (is_item or ahead[-1:] == b":" or (not ahead and begins < _WINDOW)):
            return f"Put a {{ before byte {begins}, since names with colons stand in an object."
        if ahead[-1:] == b",":
            return f"Put a ] before the comma ahead of byte {begins}, to close the list: a colon follows names only."
        return f"Leave out the : at byte {place}, which may follow a name only."
    if ahead[-1:] == b":" or around == b"[":
        return f"Put a comma before what begins at byte {place}."
    return f"Put a {'colon' if around == b'{' else 'colon or a comma'} before what begins at byte {place}."


def _open_text(body: Buffer, end: int) -> int | None:
    """Return the first byte of the unterminated string at the end of a short body, or None."""
    texts = _TEXT.finditer(bytes(body[:end])) if end <= _SHORT_BODY else iter(())
    return next((text.start() for text in texts if not text[1]), None)


def _innermost_bracket(before: bytes) -> bytes:
    """Return the last bracket that `before` opens and does not close, or b"" if there is none.

    Brackets inside strings count.
    """
    closed = 0
    for bracket in reversed(_BRACKET.findall(before)):
        closed += 1 if bracket in (b"]", b"}") else -1
        if closed < 0:
            return bytes(bracket)
    return b""


def _hint_for_text(before: bytes, there: bytes, place: int, end: int, around: bytes) -> str:
    """Return a hint for a fault between values or within a string; `before` ends at byte `end`."""
    at = f"at byte {place}"
    if there[0] >= 0x80:
        return f"Encode the body as UTF-8: the byte {there[0]:#x} {at} does not begin a character."
    if there[0] < 0x20:
        return f"Write the control character {at} as \\u{there[0]:04x}, or leave it out."
    if before[-1:] == b"\\":
        return f"Write \\\\ for a backslash {at}: the characters after it are not an escape."
    if before[-1:] == b'"':
        return _hint_after_text(before, there, place, end, around)
    if before[-1:].isalnum() or before[-1:] in (b"}", b"]"):
        return f"Put a comma before what begins {at}, or send one JSON document and no more."
    return f"Correct the JSON {at}."


def _corrected_number(given: str) -> str | None:
    """Correct a number that has a plus sign, leading zeros, or a point without digits.

    Returns None for other faults.
    """
    match = re.fullmatch(r"([+-]?)([0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?", given)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups(default="")
    if not whole and len(fraction) < 2:
        return None
    whole = whole.lstrip("0") or "0"
    return f"{sign.lstrip('+')}{whole}{fraction if len(fraction) > 1 else ''}{exponent}"


def hint_for_repeated_key(body: Buffer) -> str:
    """Return a one-sentence hint for a body that repeats a key in one object. Includes the key if the body is short."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                repeated.append(key)
            seen.add(key)

    if len(body) <= _SHORT_BODY:
        json.loads(bytes(body).decode(), object_pairs_hook=look, parse_int=str, parse_float=str)
    if not repeated:
        return "Use each key only once in an object."
    key = repeated[0].encode("utf-8", "replace").decode()
    return f"Give '{key[:_SHOWN]}{'…' if len(key) > _SHOWN else ''}' once in its object."
