"""A lookup in each format, where that format's errors point to, and the arrays of an answer."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from tests.http.forms import COMPLEX, nested
from tests.parity.items import Array, Rng, choose, name_of
from tests.parity.lookup_cases import Lookup, Tables
from tests.parity.messages import (
    OIP,
    SAFETENSORS,
    Sent,
    formats_of,
    infer_body,
    inferred,
    loaded,
    raw,
    read_tensor,
    saved,
    values,
)


@dataclass
class SentLookup(Sent):
    """A lookup as it is in one format; `pointer` knows a `feature`'s member and an `array` too."""

    def pointer(self, what: str, name: str, item: int = 0) -> str:
        if what in ("feature", "parameter"):
            starts = {"safetensors": "/__metadata__/lookup", **dict.fromkeys(OIP, "/parameters/lookup")}
            return f"{starts.get(self.format, '')}/{f'features/{name}' if what == 'feature' else name}"
        if self.format == "safetensors":
            return f"/{name}"
        if self.format in OIP:
            if name not in self.request.arrays:
                return "/inputs"
            return (
                f"/inputs/{list(self.request.arrays).index(name)}"
                if what == "array"
                else super().pointer(what, name, item)
            )
        number, _, role = name.partition(".")
        start = f"/features/{number}/{role}"
        if what in ("dtype", "shape"):
            return f"{start}/{what}"
        if what == "array":
            return start
        if self.format == "base64":
            return f"{start}/base64"
        if what == "values":
            return f"{start}/values"
        place = (
            [item] if self.format == "flat" else [int(at) for at in np.unravel_index(item, self.request.shape(name))]
        )
        return "/".join((f"{start}/values", *map(str, place)))


def send(client: httpx.Client, rng: Rng, lookup: Lookup, held: Tables) -> tuple[SentLookup, httpx.Response]:
    """Ask in one of the formats that carry the lookup and its answer, chosen at random."""
    types = {name_of(held[each.tensor]) for each in lookup.features if each.tensor in held}
    formats = [
        form
        for form in formats_of(lookup)
        if not (form == "safetensors" and types & {"string", "complex128"})
        and not (form in OIP and types & set(COMPLEX))
    ]
    sent = SentLookup(lookup, choose(rng, formats), choose(rng, ("values", "base64")))
    members = {"features": [each.members() for each in lookup.features], **lookup.parameters}
    if sent.format == "safetensors":
        content = saved(lookup.arrays, {"lookup": json.dumps(members)})
        return sent, client.post("/lookup", content=content, headers={"content-type": SAFETENSORS})
    if sent.format in OIP:
        text = {"lookup": json.dumps(members)}
        content, headers = infer_body(lookup.arrays, text, binary=sent.format == OIP[1])
        return sent, client.post("/v2/models/lookup/infer", content=content, headers=headers)
    for name, array in lookup.arrays.items():
        number, _, role = name.partition(".")
        given: dict[str, Any] = {"dtype": lookup.dtype(name), "shape": lookup.shape(name)}
        if sent.format == "base64":
            given["base64"] = b64encode(raw(array)).decode()
        else:
            given["values"] = lookup.values[name] if name in lookup.values else values(array)
        members["features"][int(number)][role] = nested(given) if sent.format == "nested" else given
    return sent, client.post("/lookup", content=json.dumps(members | {"output_encoding": sent.encoding}))


def read(sent: SentLookup, answer: httpx.Response) -> tuple[dict[str, Array], list[str], int | None]:
    """The outputs of a good answer, the tables that it names, and how many indices were replaced."""
    assert answer.status_code == 200, answer.text
    if sent.format == "safetensors":
        arrays, texts = loaded(answer.content)
        told: dict[str, Any] = json.loads(texts["lookup"])
        replaced = told.get("replaced")
    elif sent.format in OIP:
        arrays, document = inferred(answer)
        told = json.loads(document["parameters"]["lookup"])
        replaced = document["parameters"].get("replaced")
    else:
        told = answer.json()
        given = {"output": told["output"]} if "output" in told else {
            f"{number}.output": one for number, one in enumerate(told["outputs"])
        }  # fmt: skip
        arrays, replaced = {name: read_tensor(one) for name, one in given.items()}, told.get("replaced")
    return arrays, [each["tensor"] for each in told["features"]], replaced
