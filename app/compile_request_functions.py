"""Compile the functions that requests use in addition to the kernel, or load them from the cache.

These functions read and write JSON, handle framed strings, search and change key indexes, and count requests. Each
replaces its plain Python version (see `app.compilation.until_compiled`). The functions for keys come first, because an
upload with keys waits for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from numba import types

from app.compilation import array_header, decorators, intrinsics
from app.compilation.array_header import check_layout, header
from app.compilation.decorators import Compiled
from app.compilation.until_compiled import UntilCompiled
from app.json_text import (
    constants,
    find_arrays,
    grammar,
    read_elements,
    write_elements,
)
from app.json_text.compiled import (
    characters,
    decimal_to_double,
    format_float,
    parse_decimal,
    parse_element,
    parse_string,
    write_strings,
)
from app.json_text.compiled import find_arrays as compiled_find_arrays
from app.json_text.compiled import grammar as compiled_grammar
from app.json_text.compiled import read_elements as compiled_read_elements
from app.keys import index_layout, probe, siphash
from app.keys.compiled import key_bytes
from app.keys.compiled import probe as compiled_probe
from app.keys.compiled import siphash as compiled_siphash
from app.telemetry import compiled_increments, increments, metric_definitions, request_id
from app.tensors import (
    compiled_string_frames,
    compiled_utf8,
    dtypes,
    float_rounding,
    string_frames,
)

_integer: Final = types.int64
_flag: Final = types.boolean
_seconds: Final = types.float64
_bytes: Final = types.Array(types.uint8, 1, "C", readonly=True)
_octets_out: Final = types.Array(types.uint8, 1, "C")
_integers: Final = types.Array(types.int64, 1, "C", readonly=True)
_integers_out: Final = types.Array(types.int64, 1, "C")
_column: Final = (_bytes, _integer, _bytes)
_counted: Final = (*(_seconds,) * 5, _integer, _integer)


class _Function(NamedTuple):
    """A function whose plain version is in use until the compiled one is ready, and the Numba types of its
    arguments.
    """

    used: UntilCompiled[..., Any]
    compiled: Compiled[..., Any]
    arguments: tuple[Any, ...]


KEY_FUNCTIONS: Final[tuple[_Function, ...]] = (
    _Function(probe.insert, compiled_probe.insert, (_octets_out, *_column, _integer, _integer, _integers_out)),
    _Function(string_frames.read_frames, compiled_string_frames.read_frames, (_bytes, _integer, _integers_out)),
    _Function(
        string_frames.make_frames,
        compiled_string_frames.make_frames,
        (header, header),
    ),
    _Function(string_frames.text_bounds, compiled_string_frames.text_bounds, (_bytes, _integers, _integers_out)),
    _Function(
        probe.find,
        compiled_probe.find,
        (header, header),
    ),
    _Function(probe.hash_keys, compiled_probe.hash_keys, (*_column, _bytes, _integers_out, _integer, _integer)),
)
"""The functions for uploads with keys and lookups by key."""
_COUNTERS: Final[tuple[_Function, ...]] = (
    _Function(increments.answer, compiled_increments.answer, (_integer, _integer, _integer, *_counted)),
    _Function(increments.add, compiled_increments.add, (_integer, *_counted)),
)
FUNCTIONS: Final[tuple[_Function, ...]] = (
    *KEY_FUNCTIONS,
    _Function(find_arrays.scan_tensors, compiled_find_arrays.scan_tensors, (_bytes,)),
    _Function(
        read_elements.read_elements,
        compiled_read_elements.read_elements,
        (_bytes, *(_integer,) * 6, _integers_out, _octets_out, _flag),
    ),
    _Function(write_elements.write_singles, format_float.write_singles, (_bytes, _flag, _octets_out)),
    *_COUNTERS,
    _Function(find_arrays.scan_arrays, compiled_find_arrays.scan_arrays, (_bytes, _integer, _integers_out)),
    _Function(
        grammar.check,
        compiled_grammar.check,
        (_bytes, _integer, _integers_out, _integers_out, _flag),
    ),
    _Function(string_frames.frames_size, compiled_string_frames.frames_size, (_bytes, _integers)),
    _Function(string_frames.first_longer, compiled_string_frames.first_longer, (_bytes, _integers, _integer)),
    _Function(string_frames.copy_frames, compiled_string_frames.copy_frames, (_bytes, _integers, _octets_out)),
    _Function(write_elements.write_strings, write_strings.write_strings, (_bytes, _integers, _octets_out)),
    _Function(probe.remove, compiled_probe.remove, (_octets_out, *_column, _integer, _integers)),
    _Function(probe.move, compiled_probe.move, (_octets_out, *_column, _integer, _integers, _integers)),
)
_SOURCES: Final = (
    array_header,
    intrinsics,
    metric_definitions,
    request_id,
    increments,
    string_frames,
    compiled_utf8,
    constants,
    dtypes,
    float_rounding,
    characters,
    decimal_to_double,
    parse_decimal,
    parse_element,
    parse_string,
    index_layout,
    key_bytes,
    siphash,
    compiled_siphash,
)
"""Modules with code that is compiled into the functions, in addition to the functions' own modules."""


def configure(cache_dir: Path) -> Path:
    """Keep the compiled code under `cache_dir`, so that it is loaded at the next startup. Returns its folder.

    Call this before `warm`.
    """
    return decorators.cache_compiled(cache_dir, "codec", _SOURCES, [function.compiled for function in FUNCTIONS])


def warm(progress: Callable[[str], None] = lambda text: None, functions: tuple[_Function, ...] = FUNCTIONS) -> None:
    """Compile these functions, or load them from the cache. Requests use each one as soon as it is ready.

    Functions that are already in use are skipped.
    """
    check_layout()
    started = perf_counter()
    missing = [function for function in functions if function.used.run is function.used.plain]
    for function in missing:
        used, compiled, arguments = function
        compiled.compile(arguments)
        compiled.disable_compile()  # requests never trigger compilation
        # The counters are called through their entry point, without a search for the signature. Functions that take
        # objects must be called in this way, because Numba finds no signature for a tuple.
        by_entry_point = function in _COUNTERS or header in arguments
        used.run = compiled.overloads[compiled.signatures[0]].entry_point if by_entry_point else compiled
    if missing:
        progress(f"{len(missing)} functions of requests ready after {perf_counter() - started:.2f} s")
