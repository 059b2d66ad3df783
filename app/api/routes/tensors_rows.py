"""`GET /tensors/{name}/rows?key=a&key=b`: rows by key, for curl and browsers.

The request is a gather by key, whose keys are given as text in the query.
"""

from __future__ import annotations

import re
from time import perf_counter
from typing import Final

import numpy as np

from app.api.asgi_request import RequestContext
from app.errors import GatherError, Place, invalid_field
from app.formats.body_formats import FORMATS, JSON
from app.requests.split_query_string import query_fields, read_query
from app.services.service import Service
from app.tensors.by_key import ByKey
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.operator_signature import DEFAULT_DIALECT
from app.tensors.string_tensor import packed_texts
from app.tensors.tensor import Tensor

_FIELD: Final = "key"
_AT: Final = f"/query/{_FIELD}"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")


class RowsRoute:
    """Looks up rows. Rows of missing keys are zeros, and `found` identifies them."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, context: RequestContext, name: str) -> None:
        """Read the request, run the gather, and respond. May raise any error of a gather by key."""
        service, codec = self.service, FORMATS[JSON]
        texts = keys_of_query(context.query)
        keys = service.resolve(name, "/name").keys
        tensor = parse_keys("string" if keys is None else keys.dtype, texts)
        call = Call(
            "gather", name, tensor, (0,), DEFAULT_DIALECT, data_pointer="/name", by_key=ByKey("fill", found=True)
        )
        context.parsed = perf_counter()
        answer = await service.run(call, context)
        context.gathered = context.kernel_end
        short = not codec.is_long_answer(answer)
        body = await service.pool.run_unless(short, lambda: codec.write(answer, "values", context.memory), context)
        await context.send(200, JSON, body)


def keys_of_query(query: bytes) -> list[str]:
    """Return the values of the `key` fields. Raises invalid_field if there are none, or if there is any other field."""
    texts: list[str] = []
    for name, value in query_fields(query):
        if name != _FIELD:
            read_query(query, (_FIELD,))
        texts.append(value)
    if not texts:
        raise invalid_field(
            _AT, "key is missing", "Add a key to the query, as in ?key=7, and repeat it for each further key."
        )
    return texts


def parse_keys(dtype: str, texts: list[str]) -> Tensor:
    """Parse the texts into a rank-1 tensor of keys. Raises invalid_field and value_not_representable."""
    kind = DTYPES[dtype]
    if dtype == "string":
        return packed_texts(texts, _AT)
    numbers = []
    for text in texts:
        if not _INTEGER.fullmatch(text):
            raise invalid_field(
                _AT, f"a key must be an integer, since the keys are {dtype}", f"Write a whole number at {_AT}."
            )
        number = int(text)
        if not kind.low <= number <= kind.high:
            raise GatherError(
                "value_not_representable",
                f"a key is {text}, which {dtype} cannot hold",
                places=[Place(_AT, value=number)],
                hint=f"Write a number from {kind.low} to {kind.high} at {_AT}.",
            )
        numbers.append(number)
    return Tensor(kind, (len(numbers),), np.array(numbers, kind.numpy), _AT, "whole", _AT, _AT)
