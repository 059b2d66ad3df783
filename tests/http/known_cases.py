"""The known-answer cases: those of the project, and those of a file that GATHERND_CASES names.

tests/cases/known_answers.json holds one case a line. Its members are those of a request, then `output` or the code of
the `error`; `values` that are missing are 0, 1, 2, … in row-major order, and the output has the type of the data.
The answers are those of ONNX's, OpenVINO's and WebNN's own tests and texts, and of mistakes known of others.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "cases" / "known_answers.json"
ATTRIBUTES = ("batch_dims", "axis", "out_of_bounds")


@dataclass(frozen=True)
class KnownCase:
    """A request with its answer: tensors as dtype, shape and flat values, `output` or the code of an `error`."""

    name: str
    operator: str
    dialect: str
    attributes: dict[str, Any]
    data: dict[str, Any]
    indices: dict[str, Any]
    output: dict[str, Any] | None
    error: str | None

    @property
    def path(self) -> str:
        """Of the native API."""
        return f"/{self.operator.lower()}"


def _numbered(tensor: dict[str, Any]) -> dict[str, Any]:
    return {**tensor, "values": tensor.get("values", list(range(prod(tensor["shape"]))))}


def own_cases() -> list[KnownCase]:
    """Those of the project."""
    cases = []
    for read in json.loads(FILE.read_text()):
        data, output = _numbered(read["data"]), read.get("output")
        cases.append(
            KnownCase(
                read["name"],
                read["operator"],
                read["dialect"],
                {name: read[name] for name in ATTRIBUTES if name in read},
                data,
                _numbered(read["indices"]),
                output and {"dtype": data["dtype"], **_numbered(output)},
                read.get("error"),
            )
        )
    return cases


def further_cases() -> list[KnownCase]:
    """Those of the file GATHERND_CASES: a list of cases with `op`, `request_dialect`, `expect` and the like."""
    file = os.environ.get("GATHERND_CASES")
    return [
        KnownCase(
            f"{file} {number}",
            read["op"],
            read["request_dialect"],
            {name: read[name] for name in ATTRIBUTES if name in read},
            read["data"],
            read["indices"],
            read["expect"].get("output"),
            read["expect"].get("code"),
        )
        for number, read in enumerate(json.loads(Path(file).read_text()) if file else [])
    ]
