"""Readers and writers of strings between guard pages: `python -m tests.wire.guarded_strings CASES SEED CACHE_DIR`.

Octets end where memory ends, and so does what is written. An access beyond ends this process with a signal, which is
why the test runs it apart. What lies in front of a guard is right or hostile: framing that is cut, lengths beyond the
end, bytes that are no UTF-8, starts that point anywhere.
"""

from __future__ import annotations

import random
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from app import compile_request_functions
from app.json_text.compiled.read_elements import read_elements
from app.json_text.compiled.write_strings import write_strings
from app.json_text.constants import KINDS, strings_room
from app.keys.key_column import KeyColumn
from app.keys.key_index import build, find, new_seed
from app.tensors.compiled_string_frames import (
    copy_frames,
    first_longer,
    frames_size,
    read_frames,
    text_bounds,
)
from app.tensors.dtypes import DTYPES
from app.tensors.string_frames import ROOM, Framing, frame_text, make_frames
from app.tensors.string_tensor import PackedStrings
from tests.kernels.guarded import Bytes, room_for
from tests.strings import framed

LETTERS = 'ab"\\\n\0\x1f\x7féß\u0800一\ufffd\U0001f642\U0010ffff'
_NO_INTS = np.empty(0, np.int64)


def at_end(raw: bytes) -> Bytes:
    """`raw` in read-only memory that ends with it."""
    memory = room_for(len(raw), "data")
    start = memory.start(len(raw), True)
    memory.back[start:] = np.frombuffer(raw, np.uint8)
    return memory.front[start:]


def output(size: int) -> Bytes:
    """Memory of so many bytes with nothing behind it."""
    memory = room_for(size, "output")
    memory.back[:] = 0xA5
    return memory.front[memory.start(size, True) :]


def read_only(starts: list[int]) -> NDArray[np.int64]:
    array = np.array(starts, np.int64)
    array.flags.writeable = False
    return array


def some_texts(rng: random.Random) -> list[str]:
    letters = LETTERS if rng.random() < 0.7 else "abc"
    return ["".join(rng.choices(letters, k=rng.choice((0, 1, 2, 7, 8, 9, 30)))) for _ in range(rng.randrange(6))]


def framed_in_one_call(job: Framing) -> list[int]:
    """Make the frames twice, and return the results of the second job."""
    results = np.empty((2, 2), np.int64)
    make_frames.run((job, job), results)
    assert results[0].tolist() == results[1].tolist()
    return results[1].tolist()  # type: ignore[no-any-return]


def check_right(rng: random.Random) -> None:
    """Right strings are read, measured, copied and written as Python does it."""
    texts = some_texts(rng)
    raw = framed(texts)
    cuts = read_only([0, *accumulate(len(text.encode()) for text in texts)])
    made, begins = output(len(raw)), np.empty(len(texts), np.int64)
    assert framed_in_one_call(Framing(cuts, at_end("".join(texts).encode()), made, begins)) == [len(texts), -1]
    assert made.tobytes() == raw
    octets, starts = at_end(raw), np.empty(len(texts), np.int64)
    assert read_frames(octets, len(texts), starts) == (len(texts), 0, -1)
    assert starts.tolist() == begins.tolist()
    bounds = output(16 * len(texts)).view(np.int64)
    text_bounds(octets, read_only(starts.tolist()), bounds)
    assert [raw[start:stop].decode() for start, stop in bounds.reshape(-1, 2).tolist()] == texts
    chosen = rng.choices(range(len(texts)), k=rng.randrange(8)) if texts else []
    wanted = [texts[number] for number in chosen]
    places = read_only(starts[chosen].tolist())
    size = len(framed(wanted))
    assert frames_size(octets, places) == size
    out = output(size + ROOM)
    assert copy_frames(octets, places, out) == size
    assert out[:size].tobytes() == framed(wanted)
    text = orjson.dumps(wanted)
    assert write_strings(octets, places, np.empty(0, np.uint8)) == len(text)
    out = output(len(text) + ROOM)
    assert write_strings(octets, places, out) == len(text)
    assert out[: len(text)].tobytes() == text
    most = rng.randrange(12)
    long = [number for number, text in enumerate(wanted) if len(text.encode()) > most]
    assert first_longer(octets, places, most) == (long[0] if long else -1)
    short = output(rng.randrange(size + ROOM))
    assert copy_frames(octets, places, short) == (-1 if wanted else 0)
    short = output(rng.randrange(1, len(text) + ROOM))
    assert write_strings(octets, places, short) == -1


def check_hostile(rng: random.Random) -> None:
    """Nothing is read or written beyond the memory, whatever it holds."""
    raw = bytearray(framed(some_texts(rng)) or b"\0")
    for _ in range(rng.randrange(4)):
        raw[rng.randrange(len(raw))] = rng.choice((0, 1, 0x7F, 0x80, 0xC3, 0xED, 0xF4, 0xFF))
    octets = at_end(bytes(raw[: rng.randrange(len(raw) + 1)]))
    starts = output(8 * rng.randrange(4)).view(np.int64)
    read_frames(octets, rng.choice((0, 1, 3, 2**62)), starts)
    anywhere = read_only([rng.choice((-(2**63), -4, -1, *range(len(raw) + 2), 2**63 - 1)) for _ in range(3)])
    size, text = frames_size(octets, anywhere), write_strings(octets, anywhere, np.empty(0, np.uint8))
    assert (size < 0) == (text < 0)
    first_longer(octets, anywhere, 0)
    text_bounds(octets, anywhere, output(16 * rng.randrange(5)).view(np.int64))
    framed_in_one_call(Framing(anywhere, octets, output(rng.randrange(40)), np.empty(rng.randrange(4), np.int64)))
    for room in (ROOM, 40, max(size, text, 0) + ROOM):
        copy_frames(octets, anywhere, output(room))
        write_strings(octets, anywhere, output(room))


def check_search(rng: random.Random) -> None:
    """A search for keys in frames finds those of whole frames, and reads nothing beyond the memory."""
    texts = [*dict.fromkeys(some_texts(rng))]
    column = KeyColumn.of_strings(texts)
    index, _ = build(column, new_seed())
    raw = framed(texts)
    octets = at_end(raw[: rng.randrange(len(raw) + 1)])
    anywhere = rng.choices((-(2**63), -4, -1, *range(len(raw) + 2), 2**63 - 1), k=rng.choice((0, 3, 70)))
    search = index.search(column, PackedStrings(DTYPES["string"], (len(anywhere),), read_only(anywhere), octets=octets))
    find([search], [-1])
    rows: dict[bytes | None, int] = {text.encode(): row for row, text in enumerate(texts)}
    wanted = [frame_text(octets, start) for start in anywhere]
    assert search.rows.tolist() == [rows.get(None if text is None else bytes(text), -1) for text in wanted]


def check_json(rng: random.Random) -> None:
    """Strings of a JSON list are read within the room that is asked for them; the list may be cut short or wrong."""
    texts = some_texts(rng)
    text = bytearray(orjson.dumps(texts))
    wrong = rng.random() < 0.5
    if wrong and len(text) > 2:
        text[rng.randrange(1, len(text) - 1)] = rng.choice(b'"\\,]\xc3\xff\x00u')
    count = len(texts)
    view = at_end(bytes(text) + b"}" * 64)  # a request goes on behind its lists
    out = output(strings_room(count, len(text)) + -strings_room(count, len(text)) % 8)
    fine, _, element, used, _, _ = read_elements(
        view, 0, len(text), KINDS["string"], 1, count, count, _NO_INTS, out, False
    )
    if not wrong:
        assert (fine, element) == (True, count)
        assert out[8 * count : 8 * count + used].tobytes() == framed(texts)


def main(cases: int, seed: int, cache: str) -> None:
    compile_request_functions.configure(Path(cache))
    compile_request_functions.warm()
    for number in range(cases):
        rng = random.Random(f"{seed}/{number}")
        sys.stdout.write(f"{number}\n")
        check_right(rng)
        check_hostile(rng)
        check_search(rng)
        check_json(rng)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
