"""Random gathers from resident tensors, valid and not, in every format."""

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


def random_gather(rng: Rng, held: Tables, *, spoiled: bool) -> Case:
    """A request for rows of a table, valid but for what is `spoiled`."""
    path, dialect = choose(rng, sorted(DIALECTS))
    data_types, index_types, wraps = DIALECTS[path, dialect]
    names = [name for name, table in held.items() if spoiled or name_of(table) in data_types]
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
    if spoiled:
        for _ in range(int(rng.integers(0, 3))):
            _spoil(rng, path, given, list(shape), index_shape)
    known = (path, given.get("dialect", "onnx-13")) in DIALECTS
    bad = choose(rng, (0, 0.1, 0.6)) if spoiled or mode != "error" else 0
    kind = choose(rng, sorted(index_types))
    request.arrays["indices"] = gather_cases._indices(rng, request, kind, index_shape, bad, known and wraps)
    if mode == "fill" and rng.random() < 0.7:
        given["fill_value"] = values(items(rng, name_of(table), [1]))[0]
    if spoiled and rng.random() < 0.1:
        given["fill_value"] = choose(rng, (2**70, -0.5, "x", True, [1, 2], 300))
    if table.dtype == np.float32 and table.ndim == 3 and name == "pl_float32_3" and rng.random() < 0.5:
        name = "pl_alias"
    elif rng.random() < 0.1:
        name = choose(rng, (f"{name}@1", f"{name}@2" if spoiled else name, "pl_missing" if spoiled else name))
    return replace(case_of(request), resident=name)


def _spoil(rng: Rng, path: str, given: dict[str, Any], shape: list[int], index_shape: list[int]) -> None:
    batched = path == gather_cases.ND or (given.get("dialect") == "openvino-8" and rng.random() < 0.5)
    name = "batch_dims" if batched else "axis"
    match int(rng.integers(10)):
        case 0:
            given[name] = choose(rng, (-7, -1, 1, 2, 6, 2**63, -(2**64)))
        case 1 if index_shape:
            index_shape[rng.integers(len(index_shape))] = choose(rng, (0, 1, 2, 6))
        case 2:
            shape[rng.integers(len(shape) or 1) :] = choose(rng, ([], [1], [0], [2, 3]))
        case 3:
            del index_shape[: choose(rng, (1, 9))]
        case 4:
            given["dialect"] = choose(
                rng, ("onnx-13", "onnx-12", "onnx-11", "onnx-1", "openvino-8", "openvino-6", "onnx-18")
            )
        case 5:
            given["device"] = choose(rng, ("gpu", "gpu", "tpu", "cpu"))
        case 6:
            given[choose(rng, ("axis", "batch_dims", "reduction"))] = 0
        case 7:
            given["out_of_bounds"] = choose(rng, ("ignore", *MODES))
        case 8:
            given["fill_value"] = 0
        case 9:
            given.pop("axis", None)


def send(client: httpx.Client, rng: Rng, case: Case) -> None:
    """Ask over one of the transports of HTTP that have a way to say the case, chosen at random."""
    said = [each for each in HTTP if (gap := gap_of(each, case)) is None or gap.error is not None]
    choose(rng, said).send(Target(client, None), case)
