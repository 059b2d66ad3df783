"""Random gathers from resident tensors, with indices out of bounds or without, in every format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import numpy as np

from tests.conformance.cases import Case
from tests.conformance.gaps import gap_of
from tests.conformance.random_cases import case_of
from tests.conformance.transports import TRANSPORTS, Grpc, Target
from tests.http.rules import DIALECTS
from tests.parity import gather_cases
from tests.parity.gather_cases import MODES
from tests.parity.items import Rng, choose, items, name_of
from tests.parity.lookup_cases import Tables
from tests.parity.messages import Request, values

HTTP = [each for each in TRANSPORTS if not isinstance(each, Grpc)]


def random_gather(rng: Rng, held: Tables, *, is_wrong: bool) -> Case:
    """A request for rows of a table. If `is_wrong`, indices may be out of bounds and the table may not exist."""
    path, dialect = choose(rng, sorted(DIALECTS))
    data_types, index_types, wraps = DIALECTS[path, dialect]
    names = [name for name, table in held.items() if name_of(table) in data_types]
    name = choose(rng, names)
    table = held[name]
    shape = list(table.shape)
    given: dict[str, Any] = {"dialect": dialect} if dialect != "onnx-13" or rng.random() < 0.3 else {}
    mode = choose(rng, (*MODES, "error", "error"))
    if mode != "error" or dialect == "openvino-8" or rng.random() < 0.2:
        given["out_of_bounds"] = mode
    index_shape = gather_cases._shapes(rng, path, dialect, given, shape)
    if path == gather_cases.ELEMENTS and table.size > 10**4:
        index_shape = [min(size, 40) for size in index_shape]
    request = Request(path, {"data": table, "indices": np.zeros(0, np.int64)}, given)
    bad = choose(rng, (0, 0.1, 0.6)) if is_wrong or mode != "error" else 0
    kind = choose(rng, sorted(index_types))
    request.arrays["indices"] = gather_cases._indices(rng, request, kind, index_shape, bad, wraps)
    if mode == "fill" and rng.random() < 0.7:
        given["fill_value"] = values(items(rng, name_of(table), [1]))[0]
    if table.dtype == np.float32 and table.ndim == 3 and name == "pl_float32_3" and rng.random() < 0.5:
        name = "pl_alias"
    elif rng.random() < 0.1:
        name = choose(rng, (f"{name}@1", f"{name}@2" if is_wrong else name, "pl_missing" if is_wrong else name))
    return replace(case_of(request), resident=name)


def send(client: httpx.Client, rng: Rng, case: Case) -> None:
    """Ask over one of the transports of HTTP that have a way to say the case, chosen at random."""
    said = [each for each in HTTP if (gap := gap_of(each, case)) is None or gap.error is not None]
    choose(rng, said).send(Target(client, None), case)
