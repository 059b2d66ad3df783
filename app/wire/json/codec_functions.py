"""The functions of the JSON codec that exist twice, in Python (`plain`) and compiled (`compiled`), by the same names.

`app.compile_codec` stores the compiled ones here once they are ready.
"""

from __future__ import annotations

from typing import Final

from app.compiled_later import CompiledLater
from app.wire.json.plain import find_arrays, format_float, grammar_and_duplicate_keys, parse_number_arrays
from app.wire.json.plain import write_strings as plain_write_strings

scan_tensors: Final = CompiledLater(find_arrays.scan_tensors)
scan_inputs: Final = CompiledLater(find_arrays.scan_inputs)
scan_features: Final = CompiledLater(find_arrays.scan_features)
check: Final = CompiledLater(grammar_and_duplicate_keys.check)
read_elements: Final = CompiledLater(parse_number_arrays.read_elements)
write_strings: Final = CompiledLater(plain_write_strings.write_strings)
write_singles: Final = CompiledLater(format_float.write_singles)
