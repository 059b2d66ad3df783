"""Counters in memory that several processes share: each counts in a slot of its own, any of them can add all up.

Every process has a slot in one shared memory and is the only one to write it, so counting takes no lock and nothing of
what was counted is lost when a process is killed. A slot outlives its process: the next one that gets it goes on
counting where the last one ended, so a sum never falls.

A slot is a table of cells, each a name and a float64, which holds counts exactly up to 2**53. A process names a cell
when it first counts under that name.

    slot   header  HEADER_WORDS uint64, see `SlotHeader`
           values  CELLS float64
           names   CELLS times one byte for the length and NAME_BYTES - 1 for UTF-8

A service of one process has one slot in memory of its own.
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
"""The first of the cells that stay unnamed: what is counted once all others are taken goes there, and is not shown."""
SLOT_BYTES: Final = -(-(_NAMES + CELLS * NAME_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE
"""Bytes of a slot, of which only the pages that are written ever take memory."""
_LAYOUT: Final = crc32(__version__.encode())
"""Processes of another version may count in other cells, and must not share the memory."""
GAUGE: Final = "="
"""First character of the names of gauges, whose values end with their process."""


class SlotHeader(IntEnum):
    """The words of a slot's header."""

    PID = 0  # 0: no process has the slot
    HEARTBEAT = 1  # a count that moves as long as the process's event loop does
    ACCEPTING = 2  # 1 while the process takes new connections
    CONNECTIONS = 3
    USED = 4  # cells that have a name or had one
    LAYOUT = 5  # the version that laid out the slot
    MAP = 6  # of a router: the generation of the map that the process serves by, 0 before its first one


class Slot:
    """One slot, as its process or as a reader sees it."""

    def __init__(self, memory: memoryview, number: int) -> None:
        self.number = number
        whole = memory[number * SLOT_BYTES : (number + 1) * SLOT_BYTES]
        self.header = whole[:_VALUES].cast("Q")
        self.values = whole[_VALUES:_NAMES].cast("d")
        self._names = whole[_NAMES : _NAMES + CELLS * NAME_BYTES]

    def name(self, cell: int) -> str:
        """The name of a cell, "" for one that was given up."""
        start = cell * NAME_BYTES
        size = self._names[start]
        return bytes(self._names[start + 1 : start + 1 + size]).decode()

    def set_name(self, cell: int, name: bytes) -> None:
        """Name a cell, or with b"" give it up."""
        start = cell * NAME_BYTES
        self._names[start] = 0
        self._names[start + 1 : start + 1 + len(name)] = name
        self._names[start] = len(name)


class Counters:
    """This process's slot, and the sums over all slots. `values[cell]` is this process's number of a cell."""

    def __init__(self, memory: memoryview, number: int) -> None:
        """Take over slot `number`, with what earlier processes counted there; its gauges start at nothing.

        Raises RuntimeError where that was counted by another version, whose cells may be others.
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
        """Return the cell of this name, adding it if missing; a cell that nobody reads if all are taken."""
        found = self._cells.get(name)
        if found is not None:
            return found
        if self._free:
            cell = self._free.pop()
            self._name(cell, name)
            return cell
        return self.adjacent_cells((name,))

    def adjacent_cells(self, names: Sequence[str]) -> int:
        """The first of cells that lie side by side, named in this order; only for names never used otherwise."""
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
        """Forget these cells of this process, for others to be named in their place."""
        for name in names:
            cell = self._cells.pop(name, None)
            if cell is not None:
                self.slot.set_name(cell, b"")
                self._free.append(cell)

    def add(self, name: str, number: float = 1.0) -> None:
        """Count under a name; where it is done for each request, keep the cell and use `values`."""
        self.values[self.cell(name)] += number

    def set_gauge(self, name: str, number: float) -> None:
        """Set a gauge, whose name begins with GAUGE."""
        self.values[self.cell(name)] = number

    def totals(self) -> dict[str, float]:
        """Each name with the sum over all processes; of gauges, over those that live."""
        found: dict[str, float] = {}
        for slot in self._slots:
            lives = slot.header[SlotHeader.PID] != 0
            for cell in range(slot.header[SlotHeader.USED]):
                name = slot.name(cell)
                if name and (lives or not name.startswith(GAUGE)):
                    found[name] = found.get(name, 0.0) + slot.values[cell]
        return found

    def processes(self) -> dict[int, int]:
        """The ids of the processes that live, by the numbers of their slots."""
        return {slot.number: slot.header[SlotHeader.PID] for slot in self._slots if slot.header[SlotHeader.PID]}

    def labels(self, name: str) -> set[str]:
        """Return the label values that this process's slot has for `name`, a metric with one label."""
        return {cell.partition("|")[2] for cell in self._cells if cell.startswith(f"{name}|")}

    def accepting(self) -> list[int]:
        """How many connections each process has that takes new ones."""
        return [slot.header[SlotHeader.CONNECTIONS] for slot in self._slots if slot.header[SlotHeader.ACCEPTING]]

    def map_generations(self) -> list[int]:
        """The generation of the map of each process that has one."""
        maps = [slot.header[SlotHeader.MAP] for slot in self._slots if slot.header[SlotHeader.PID]]
        return [generation for generation in maps if generation]


def unshared_counters() -> Counters:
    """Counters of a service that is one process."""
    return Counters(memoryview(mmap.mmap(-1, SLOT_BYTES)), 0)


class CounterGroup:
    """The shared memory of a parent's workers: `slots` of them, in a file that has no name and ends with them."""

    def __init__(self, slots: int) -> None:
        self.fd = os.memfd_create("gathernd-counters", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, slots * SLOT_BYTES)
        memory = memoryview(mmap.mmap(self.fd, slots * SLOT_BYTES))
        self.slots = [Slot(memory, place) for place in range(slots)]

    def release(self, number: int) -> None:
        """The process of this slot has ended."""
        header = self.slots[number].header
        for word in (SlotHeader.ACCEPTING, SlotHeader.CONNECTIONS, SlotHeader.MAP, SlotHeader.PID):
            header[word] = 0


def join(fd: int, number: int) -> Counters:
    """Counters of the worker that has slot `number` in the shared memory `fd`."""
    return Counters(memoryview(mmap.mmap(fd, os.fstat(fd).st_size)), number)
