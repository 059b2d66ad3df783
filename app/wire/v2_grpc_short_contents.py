"""The contents of many inputs with few items each, cut out of their message and read together.

Each input's contents are a message of their own. Read one by one, thousands of them take ten times what a JSON library
takes for as many bytes. What is wrong is found together, too; then the first input that is wrong is read by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.frame_format import HEAD
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.wire.little_endian_items import REFUSED_BY_CHARGE, Charge, PackedItemError, bounded_product, unpack, view_of
from app.wire.protobuf_fields import MessageFields, joined
from app.wire.protobuf_format import BYTES, NONE, ROW
from app.wire.v2_alike_inputs import LONGEST_READY, InputItems, pointers_of
from app.wire.v2_grpc_contents import (
    FIELD_OF,
    FLOATS,
    STRINGS,
    Contents,
    check_count,
    check_field,
    count_items,
    pack,
    place_of,
)
from app.wire.v2_grpc_cut_contents import INPUTS, KIND, contents_of
from app.wire.v2_request_json import Input
from app.wire.v2_request_tensors import check_datatypes

FEW: Final = 16
"""So many inputs with contents, one after the other, are read one by one: that takes less time."""
_SHORT: Final = LONGEST_READY
"""Bytes of an input that is read with others: beside longer ones, the time of a call is little."""
_PORTION: Final = 1 << 15
"""Bytes of inputs that are cut at a time."""
_TOGETHER: Final = 1 << 8
_TOGETHER_BYTES: Final = 1 << 17
"""Inputs whose items are read at a time, and about how many bytes of them."""
_LARGEST_TAG: Final = STRINGS << 3 | BYTES
_KEYS: Final = STRINGS + 1
"""So many numbers of fields there are, with 0: the field of an input is _KEYS times the input, plus its number."""


def _fields_by_tag() -> NDArray[np.int64]:
    found = np.zeros(_LARGEST_TAG + 2, np.int64)
    for number, kind in KIND.items():
        found[number << 3 | kind] = found[number << 3 | BYTES] = number
    found[_LARGEST_TAG] = STRINGS
    return found


_FIELD_BY_TAG: Final = _fields_by_tag()
"""The number of the field of items that a tag stands for, 0 for none; the last one stands for all larger tags."""


def have_contents(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the fields of a request that were found are inputs with contents."""
    found: NDArray[np.bool_] = (rows[:, 0] == INPUTS) & (rows[:, 1] == BYTES) & (rows[:, 5] != NONE)
    return found


def segments(rows: NDArray[np.int64]) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """Fields of a request that were found, in pieces: whether one has more than FEW inputs with contents, all short."""
    if len(rows) <= FEW:
        yield False, rows
        return
    sizes = rows[:, 4] - rows[:, 3]
    have = have_contents(rows)
    long = have & (sizes > _SHORT)
    portions = np.cumsum(np.where(have & ~long, sizes, 0)) // _PORTION
    starts = np.flatnonzero((np.diff(portions) > 0) | long[1:] | long[:-1]) + 1
    edges = [0, *starts.tolist(), len(rows)]
    rows = rows.copy()  # they are overwritten where fields within one of them are looked for
    for begin, end in pairwise(edges):
        yield int(np.count_nonzero(have[begin:end])) > FEW, rows[begin:end]


class ShortContents:
    """The items of inputs whose contents are short.

    `fields` has, for each field of items of each input, which of the inputs that is, the number of the field, where its
    values begin and end in `octets`, of strings in `frames`, how many items there are, and whether a value ends in the
    middle of one.
    """

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._inputs: list[NDArray[np.int64]] = []
        self._fields: list[NDArray[np.int64]] = []
        self.count = 0
        self.octets = bytearray()
        self.frames = bytearray()

    def add(self, numbers: NDArray[np.int64], rows: NDArray[np.int64], inner: NDArray[np.int64]) -> None:
        """The fields `inner` are in the contents of inputs in `rows`, whose numbers are `numbers`."""
        have = np.flatnonzero(have_contents(rows))
        self._inputs.append(np.stack((numbers[have], rows[have, 3], rows[have, 4]), axis=1))
        places = np.zeros(len(rows), np.int64)
        places[have] = np.arange(self.count, self.count + len(have))
        self.count += len(have)
        fields = _FIELD_BY_TAG[np.clip(inner[:, 1], 0, _LARGEST_TAG + 1)]
        keys = _KEYS * places[inner[:, 0]] + fields
        order = np.argsort(keys, kind="stable")
        order = order[fields[order] > 0]
        if not len(order):
            return
        keys, fields, begins, ends = keys[order], fields[order], inner[order, 2], inner[order, 3]
        text = fields == STRINGS
        sizes = np.where(text, 0, ends - begins)
        stops = np.cumsum(sizes)
        octets = joined(view_of(self._message), begins, begins + sizes)
        counts, broken = _counted(fields, sizes, stops, octets)
        words = np.zeros((int(np.count_nonzero(text)), ROW), np.int64)
        words[:, 3], words[:, 4] = begins[text], ends[text]
        frames = MessageFields(self._message).frames_of(words)
        frame_stops = np.cumsum(np.where(text, HEAD + ends - begins, 0))
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        last = np.append(first[1:], len(keys)) - 1
        of_text = text[first]
        # In `frames` a value begins HEAD bytes before its text, in `octets` where it begins itself.
        own_begins = np.where(of_text, len(self.frames) + frame_stops[first] - HEAD - ends[first] + begins[first], 0)
        own_begins += np.where(of_text, 0, len(self.octets) + stops[first] - sizes[first])
        own_ends = np.where(of_text, len(self.frames) + frame_stops[last], len(self.octets) + stops[last])
        counts, broken = np.add.reduceat(counts, first), np.logical_or.reduceat(broken, first)
        found = (keys[first] // _KEYS, fields[first], own_begins, own_ends, counts, broken)
        self._fields.append(np.stack(found, axis=1).astype(np.int64))
        self.octets += octets.data
        self.frames += frames

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the inputs."""
        return self._joined(self._inputs, 3)[:, 0]

    @property
    def fields(self) -> NDArray[np.int64]:
        """See the class."""
        return self._joined(self._fields, 6)

    def contents(self, place: int) -> Contents:
        """The contents of one of the inputs, read by itself."""
        _, begin, end = self._joined(self._inputs, 3)[place].tolist()
        return contents_of(self._message, begin, end)

    def _joined(self, parts: list[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
        if len(parts) != 1:
            parts[:] = [np.concatenate(parts) if parts else np.zeros((0, width), np.int64)]
        return parts[0]


def _counted(
    fields: NDArray[np.int64], sizes: NDArray[np.int64], stops: NDArray[np.int64], octets: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """How many items each value has, and whether it ends in the middle of one."""
    ended = np.zeros(len(octets) + 1, np.int64)
    np.cumsum(octets < 0x80, out=ended[1:])
    counts = ended[stops] - ended[stops - sizes]
    broken = np.zeros(len(sizes), bool)
    some = sizes > 0
    broken[some] = octets[stops[some] - 1] >= 0x80
    for field, size in FLOATS.items():
        of_field = fields == field
        counts[of_field], broken[of_field] = sizes[of_field] // size, sizes[of_field] % size > 0
    counts[fields == STRINGS] = 1
    return counts, broken


def read_contents(
    short: ShortContents, contents: Mapping[int, Contents], inputs: Sequence[Input], charge: Charge | None
) -> InputItems:
    """The items of the inputs; `contents` are those that are not short, by the numbers of their inputs. Raises what is
    wrong with the first of them, as reading them one by one does.
    """
    return _Reader(short, contents, inputs, charge).read()


class _Reader:
    """See `read_contents`. A place is that of an input in `inputs`, which are in their order in the request."""

    def __init__(
        self, short: ShortContents, contents: Mapping[int, Contents], inputs: Sequence[Input], charge: Charge | None
    ) -> None:
        self._short, self._contents, self._inputs, self._charge = short, contents, inputs, charge
        numbers = np.array([one.number for one in inputs], np.int64)
        at = np.minimum(np.searchsorted(short.numbers, numbers), short.count - 1)
        self._is_short = short.numbers[at] == numbers
        self._place_in_short = at
        self._others = np.flatnonzero(~self._is_short).tolist()
        places = np.full(short.count, -1)
        places[at[self._is_short]] = np.flatnonzero(self._is_short)
        fields = short.fields.copy()
        fields[:, 0] = places[fields[:, 0]]
        self._fields = fields[fields[:, 0] >= 0]
        self._wanted = np.array([FIELD_OF.get(one.datatype, 0) for one in inputs], np.int64)

    def read(self) -> InputItems:
        """See `read_contents`."""
        inputs, wanted = self._inputs, self._wanted.tolist()
        places, fields, begins, ends, _, _ = self._fields.T
        elsewhere = (fields != self._wanted[places]) & (ends > begins)
        self._check(places[elsewhere], lambda place: check_field(inputs[place], self._contents_of(place)))
        check_datatypes(inputs)
        self._fields = self._fields[fields == self._wanted[places]]
        places, counted, broken = self._fields[:, 0], self._fields[:, 4], self._fields[:, 5] > 0
        counts = np.zeros(len(inputs), np.int64)
        counts[places] = counted

        def count(place: int) -> None:
            counts[place] = count_items(wanted[place], self._contents_of(place).get(wanted[place], ()))

        def check(place: int) -> None:
            if wanted[place]:
                check_count(inputs[place], wanted[place], int(counts[place]))

        self._check(places[broken], count)
        products = {shape: bounded_product(shape, _SHORT + 1) for shape in {one.shape for one in inputs}}
        asked = np.array([products[one.shape] for one in inputs], np.int64)
        self._check(np.flatnonzero(self._is_short & (self._wanted > 0) & (counts != asked)), check)
        return self._pack(counts)

    def _contents_of(self, place: int) -> Contents:
        if self._is_short[place]:
            return self._short.contents(int(self._place_in_short[place]))
        return self._contents.get(self._inputs[place].number, {})

    def _check(self, wrong: NDArray[np.int64], check: Callable[[int], object]) -> None:
        """Check the inputs that are not short, and the first of those that are `wrong`, in their order."""
        first = int(wrong[0]) if len(wrong) else len(self._inputs)
        for place in self._others:
            if place > first:
                break
            check(place)
        if len(wrong):
            check(first)

    def _pack(self, counts: NDArray[np.int64]) -> InputItems:
        inputs, wanted = self._inputs, self._wanted.tolist()
        ready: dict[str, Tensor] = {}
        raws: dict[str, Buffer] = {}
        datatypes = [one.datatype for one in inputs]
        for datatype in set(datatypes):
            alike = np.array([one == datatype for one in datatypes], bool)
            rows = self._fields[alike[self._fields[:, 0]]]
            stops = np.cumsum(rows[:, 3] - rows[:, 2])
            at, size = 0, _TOGETHER
            while at < len(rows) and size:
                before = stops[at - 1] if at else 0
                within = int(np.searchsorted(stops[at : at + size], before + _TOGETHER_BYTES, side="right"))
                some = rows[at : at + max(1, within)]
                found = self._read_alike(some)
                if found is None:
                    size = len(some) // 2  # down to none where the next one is wrong: those behind it need not be read
                else:
                    self._add_tensors(some, found, ready)
                    at += len(some)
            for place, field, begin, end in rows[at:, :4].tolist():
                if field == STRINGS:  # the first of them is not UTF-8
                    raws[inputs[place].name] = memoryview(self._short.frames)[begin:end]
        flat = {name: place_of(STRINGS) for name in raws}
        if len(ready) + len(raws) < len(inputs):
            for place, (one, field, count) in enumerate(zip(inputs, wanted, counts.tolist(), strict=True)):
                if one.name not in ready and one.name not in raws:
                    values = self._contents_of(place).get(field, ()) if count else ()
                    raws[one.name] = pack(one, field, values, count, self._charge) if field else b""
                    flat[one.name] = place_of(field)
        return InputItems(raws, flat, ready)

    def _add_tensors(self, rows: NDArray[np.int64], found: Tensor, ready: dict[str, Tensor]) -> None:
        """Add the tensors of inputs of one datatype, whose items are one behind the other in `found`."""
        dtype, array, of, begin = found.dtype, found.array, place_of(int(rows[0, 1])), 0
        make = partial(PackedStrings, octets=found.octets) if isinstance(found, PackedStrings) else Tensor
        for place, end in zip(rows[:, 0].tolist(), np.cumsum(rows[:, 4]).tolist(), strict=True):
            one = self._inputs[place]
            pointer, _, shape_pointer, dtype_pointer = pointers_of(one.number)
            own = array[begin:end]
            ready[one.name] = make(dtype, one.shape, own, pointer + of, "flat", shape_pointer, dtype_pointer)
            begin = end

    def _read_alike(self, rows: NDArray[np.int64]) -> Tensor | None:
        """The items of inputs of one datatype, one behind the other; None where one of them is wrong."""
        first, field, count = self._inputs[rows[0, 0]], int(rows[0, 1]), int(rows[:, 4].sum())
        dtype = first.dtype
        assert dtype is not None
        source = self._short.frames if field == STRINGS else self._short.octets
        items: Buffer = joined(view_of(source), rows[:, 2], rows[:, 3]).data
        try:
            if field != STRINGS:
                items = pack(first._replace(shape=(count,)), field, [items], count, self._charge)
            return unpack(dtype, (count,), items, self._charge)
        except PackedItemError:
            return None
        except GatherError as error:
            if error.code in REFUSED_BY_CHARGE:
                raise
            return None
