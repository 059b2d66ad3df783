"""Build the outputs of a lookup from what kernels wrote: convert types, and add the octets of strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_lookup import rows_of
from app.kernels.float_conversion import in_type
from app.memory.budget import Memory
from app.operators.shape_rules import check_output_bytes
from app.services.lookup_arrays import LookupRun, Marks
from app.store import Resident
from app.tensors.gather_call import OUTPUT
from app.tensors.lookup_call import LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import read_frames
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor


def output_names(call: LookupCall) -> list[str]:
    """Return the names of the outputs: `output`, or `0.output`, `1.output` and so on."""
    return [OUTPUT] if call.concat else [f"{number}.{OUTPUT}" for number in range(len(call.features))]


def outputs_of(call: LookupCall, run: LookupRun) -> list[Tensor]:
    """Return the outputs of a lookup without strings. Converts them to the requested type, then concatenates them."""
    written = zip(run.plan.written, run.outputs, strict=True)
    parts = [Tensor(dtype, shape, out.view(dtype.numpy)) for (dtype, shape), out in written]
    if call.output_dtype is None:
        return parts
    (target, shape), *_ = run.plan.outputs
    parts = [in_type(part, target) for part in parts]
    if not call.concat:
        return parts
    if not shape[0]:
        return [Tensor(target, shape, np.empty(0, target.numpy))]
    rows = [part.array.reshape(shape[0], -1) for part in parts]
    return [Tensor(target, shape, np.concatenate(rows, axis=1).reshape(-1))]


def string_outputs(
    call: LookupCall,
    run: LookupRun,
    residents: Sequence[Resident],
    filled: Marks,
    fills: Mapping[str, Tensor],
    limits: Limits,
    memory: Memory,
) -> list[Tensor]:
    """Return the outputs if at least one has strings. The strings' frames are copied only to concatenate them.

    Raises output_too_large if the strings have more bytes than a response may have.
    """
    found: list[Tensor] = []
    size = 0
    parts: list[tuple[int, int, PackedStrings]] = []  # number, width, strings
    for number, (feature, resident) in enumerate(zip(run.plan.features, residents, strict=True)):
        table = resident.tensor
        rows = rows_of(feature, run.outputs[feature.output])
        shape = run.plan.shapes[number]
        if not isinstance(table, PackedStrings):
            dtype = table.dtype
            found.append(Tensor(dtype, shape, run.outputs[feature.output].view(dtype.numpy)))
            size += run.outputs[feature.output].nbytes
            continue
        memory.charge(rows.nbytes)
        strings = table.gathered(shape, np.ascontiguousarray(rows).reshape(-1).view(np.uint64))
        marks = filled[number]
        if marks is not None:
            where = np.repeat(marks, feature.row_items)
            item = fills[table.dtype.name]
            assert isinstance(item, PackedStrings), "its type is that of the table"
            strings = strings.filled(where, item, memory.charge)
        size += strings.nbytes
        check_output_bytes("the strings looked up", size, limits, call.pointer("features"))
        found.append(strings)
        parts.append((number, rows.shape[1], strings))
    if not call.concat:
        return found
    return [_joined_strings(run, parts, memory)]


def _joined_strings(run: LookupRun, parts: Sequence[tuple[int, int, PackedStrings]], memory: Memory) -> PackedStrings:
    """Return the strings of several tables as one tensor, with copies of their frames in one array."""
    (dtype, shape), out = run.plan.outputs[0], run.outputs[0]
    starts = out.view(np.int64).reshape(shape[0], -1) if out.size else np.empty((0, 0), np.int64)
    pieces: list[NDArray[np.uint8]] = []
    end = 0
    for number, width, strings in parts:
        octets = np.frombuffer(strings.packed(memory.charge), np.uint8)
        count = strings.array.size
        memory.charge(8 * count + octets.nbytes)
        places = np.empty(count, np.int64)
        octets.flags.writeable = False
        read_frames.run(octets, count, places)
        if count:
            column = run.plan.features[number].column // 8
            starts[:, column : column + width] = places.reshape(-1, width) + end
        pieces.append(octets)
        end += octets.size
    return PackedStrings(dtype, shape, starts.reshape(-1), octets=np.concatenate(pieces))
