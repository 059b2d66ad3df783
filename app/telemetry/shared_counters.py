"""Counters in memory that several processes share: each counts in its own slot, and any process can sum all slots.

Every process owns a slot in the shared memory and is its only writer. Counting therefore takes no lock, and no counts
are lost when a process is killed. A slot outlives its process: the next process with that slot continues from the same
counts, so sums never decrease.

A slot is a table of cells, each with a name and a value. Values are float64, exact for counts up to 2**53. A process
assigns a name to a cell when it first counts under that name.

    slot   header  HEADER_WORDS uint64, see `SlotHeader`
           values  CELLS float64
           names   CELLS times one byte for the length and NAME_BYTES - 1 for UTF-8

A service with a single process has one slot in private memory.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final
from zlib import crc32

from app import __version__

logger = logging.getLogger("gathernd")

HEADER_WORDS: Final = 8
CELLS: Final = 1 << 14
NAME_BYTES: Final = 192
_VALUES: Final = HEADER_WORDS * 8
_NAMES: Final = _VALUES + CELLS * 8
_SPARE: Final = CELLS - 64
"""The first of the cells that never get a name.

When all other cells are taken, further metrics are counted here and are not exposed.
"""
SLOT_BYTES: Final = -(-(_NAMES + CELLS * NAME_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
"""Size of a slot in bytes. Only pages that have been written take memory."""
_LAYOUT: Final = crc32(__version__.encode())
"""A checksum of the version: processes of another version may use other cells and must not share the memory."""
GAUGE: Final = "="
"""First character of a gauge's name. The value of a gauge disappears with its process."""


class SlotHeader(IntEnum):
    """The words of a slot's header."""

    PID = 0  # 0 if no process owns the slot
    HEARTBEAT = 1  # a count that increases while the process's event loop runs
    ACCEPTING = 2  # 1 while the process accepts new connections
    CONNECTIONS = 3
    USED = 4  # number of cells that have a name or once had one
    LAYOUT = 5  # checksum of the version that wrote the slot
    MAP = 6  # for a router, the generation of the map that the process serves; 0 before its first map


class Slot:
    """One slot, for its own process or for a reader."""

    def __init__(self, memory: memoryview, number: int) -> None:
        self.number = number
        whole = memory[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
        self.header = whole[:_VALUES].cast("Q")
        self.values = whole[_VALUES:_NAMES].cast("d")
        self._names = whole[_NAMES : _NAMES + CELLS * NAME_BYTES]

    def name(self, cell: int) -> str:
        """Return the name of a cell, or "" if it was released."""
        start = cell * NAME_BYTES
        size = self._names[start]
        return bytes(self._names[start + 1 : start + 1 + size]).decode()

    def set_name(self, cell: int, name: bytes) -> None:
        """Set the name of a cell, or release the cell with b""."""
        start = cell * NAME_BYTES
        self._names[start] = 0
        self._names[start + 1 : start + 1 + len(name)] = name
        self._names[start] = len(name)


class Counters:
    """This process's slot, and the sums over all slots. `values[cell]` is this process's value of a cell."""

    def __init__(self, memory: memoryview, number: int) -> None:
        """Take over slot `number`, including the counts of earlier processes. Gauges start at 0.

        Raises RuntimeError if another version of the program has used the slot, because its cells may differ.
        """
        self._slots = [Slot(memory, place) for place in range(len(memory) // SLOT_BYTES)]
        self.slot = self._slots[number]
        self.shared = len(self._slots) > 1
        self.header = self.slot.header
        if self.header[SlotHeader.LAYOUT] not in (0, _LAYOUT):
            raise RuntimeError("the workers of this service are of another version: stop it and start it again")
        self.header[SlotHeader.LAYOUT] = _LAYOUT
        self.values = self.slot.values
        self._cells: dict[str, int] = {}
        self._free: list[int] = []
        self._full = False
        for cell in range(self.header[SlotHeader.USED]):
            name = self.slot.name(cell)
            if name:
                self._cells[name] = cell
                if name.startswith(GAUGE):
                    self.values[cell] = 0.0
            else:
                self._free.append(cell)
        for word in (SlotHeader.HEARTBEAT, SlotHeader.ACCEPTING, SlotHeader.CONNECTIONS, SlotHeader.MAP):
            self.header[word] = 0
        self.header[SlotHeader.PID] = os.getpid()

    def cell(self, name: str) -> int:
        """Return the cell with this name, adding it if it is missing.

        Returns a spare cell without a name if all other cells are taken.
        """
        found = self._cells.get(name)
        if found is not None:
            return found
        if self._free:
            cell = self._free.pop()
            self._name(cell, name)
            return cell
        return self.adjacent_cells((name,))

    def adjacent_cells(self, names: Sequence[str]) -> int:
        """Return the first of adjacent cells with these names, in order. Use these names with this method only."""
        found = self._cells.get(names[0])
        if found is not None:
            return found
        first = self.header[SlotHeader.USED]
        if first + len(names) > _SPARE:
            if not self._full:
                logger.error("all %d counters are taken: %s and later ones are not counted", _SPARE, names[0])
                self._full = True
            return _SPARE
        for place, name in enumerate(names):
            self._name(first + place, name)
        self.header[SlotHeader.USED] = first + len(names)
        return first

    def _name(self, cell: int, name: str) -> None:
        text = name.encode()
        if len(text) >= NAME_BYTES:
            raise ValueError(f"the name of a counter is too long: {name!r}")
        self.values[cell] = 0.0
        self.slot.set_name(cell, text)
        self._cells[name] = cell

    def forget(self, names: Iterable[str]) -> None:
        """Release the cells with these names in this process, so that the cells can be reused."""
        for name in names:
            cell = self._cells.pop(name, None)
            if cell is not None:
                self.slot.set_name(cell, b"")
                self._free.append(cell)

    def add(self, name: str, number: float = 1.0) -> None:
        """Add to the cell with this name. In code that runs for every request, keep the cell and use `values`."""
        self.values[self.cell(name)] += number

    def set_gauge(self, name: str, number: float) -> None:
        """Set a gauge. Its name must begin with GAUGE."""
        self.values[self.cell(name)] = number

    def totals(self) -> dict[str, float]:
        """Return the sum over all processes by name. For gauges, only live processes count."""
        found: dict[str, float] = {}
        for slot in self._slots:
            lives = slot.header[SlotHeader.PID] != 0
            for cell in range(slot.header[SlotHeader.USED]):
                name = slot.name(cell)
                if name and (lives or not name.startswith(GAUGE)):
                    found[name] = found.get(name, 0.0) + slot.values[cell]
        return found

    def processes(self) -> dict[int, int]:
        """Return the ids of the live processes, by slot number."""
        return {slot.number: slot.header[SlotHeader.PID] for slot in self._slots if slot.header[SlotHeader.PID]}

    def labels(self, name: str) -> set[str]:
        """Return the label values in this process's slot for the metric `name`, which has one label."""
        return {cell.partition("|")[2] for cell in self._cells if cell.startswith(f"{name}|")}

    def accepting(self) -> list[int]:
        """Return the number of connections of each process that accepts new ones."""
        return [slot.header[SlotHeader.CONNECTIONS] for slot in self._slots if slot.header[SlotHeader.ACCEPTING]]

    def map_generations(self) -> list[int]:
        """Return the generation of the map of each process that has one."""
        maps = [slot.header[SlotHeader.MAP] for slot in self._slots if slot.header[SlotHeader.PID]]
        return [generation for generation in maps if generation]


def unshared_counters() -> Counters:
    """Return counters for a service with a single process."""
    return Counters(memoryview(mmap.mmap(-1, SLOT_BYTES)), 0)


class CounterGroup:
    """The shared memory of a parent's workers: `slots` slots in an unnamed file that disappears with its processes."""

    def __init__(self, slots: int) -> None:
        self.fd = os.memfd_create("gathernd-counters", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, slots * SLOT_BYTES)
        memory = memoryview(mmap.mmap(self.fd, slots * SLOT_BYTES))
        self.slots = [Slot(memory, place) for place in range(slots)]

    def release(self, number: int) -> None:
        """Release the slot of a process that has ended."""
        header = self.slots[number].header
        for word in (SlotHeader.ACCEPTING, SlotHeader.CONNECTIONS, SlotHeader.MAP, SlotHeader.PID):
            header[word] = 0


def join(fd: int, number: int) -> Counters:
    """Return the counters of the worker with slot `number` in the shared memory `fd`."""
    return Counters(memoryview(mmap.mmap(fd, os.fstat(fd).st_size)), number)
