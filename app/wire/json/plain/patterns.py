"""Regular expressions for the parts of JSON texts, as bytes: what their names say, without groups.

All repetitions are possessive: nothing is looked at twice, however hostile the text is.
"""

from __future__ import annotations

from typing import Final

SPACE: Final = rb"[ \t\n\r]*+"
ANY_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
"""From a quote to the one that closes it, whatever is between; for patterns with the flag DOTALL."""
_HEXADECIMAL: Final = rb"[0-9a-fA-F]{4}"
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u' + _HEXADECIMAL + rb")"
CHARACTERS: Final = rb'(?:[^"\\\x00-\x1f]++|' + _ESCAPE + rb")*+"
"""Of a string, where the whole text is known to be UTF-8."""
_UTF_8: Final = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
CHARACTERS_OF_UTF_8: Final = rb'(?:[^"\\\x00-\x1f\x80-\xff]++|' + _ESCAPE + b"|" + _UTF_8 + rb")*+"
"""Of a string, where the text may be no UTF-8 (RFC 3629)."""
NUMBER: Final = rb"-?+(?:0(?![0-9])|[1-9][0-9]*+)(?:\.[0-9]++|(?!\.))(?:[eE][+-]?+[0-9]++|(?![eE]))"
BARE_NUMBER: Final = rb"NaN|-?+Infinity"
"""What JSON has no numbers for."""
NAME: Final = rb"true|false|null"
