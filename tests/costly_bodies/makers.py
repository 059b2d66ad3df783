"""The corpus of costly bodies: by the name of a group, what makes its bodies of about a size in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.costly_bodies import gathers, grpc_messages, operators, small_arrays
from tests.costly_bodies.read_body import Body

Maker = Callable[[int], Iterator[Body]]
GATHER_MAKERS: Final[dict[str, Maker]] = {
    "values": gathers.values_bodies,
    "single": gathers.single_bodies,
    "base64": gathers.base64_bodies,
    "fields": gathers.fields_bodies,
    "binary": gathers.binary_bodies,
    "npy": gathers.npy_bodies,
    "query": gathers.query_bodies,
}
OPERATOR_MAKERS: Final[dict[str, Maker]] = {
    "values of operators": operators.values_bodies,
    "fields of operators": operators.fields_bodies,
    "features of operators": small_arrays.features_bodies,
    "inputs of operators": small_arrays.inputs_bodies,
    "fractions of operators": small_arrays.fraction_bodies,
    "binary of operators": operators.binary_bodies,
    "messages of operators": grpc_messages.message_bodies,
    "contents of operators": grpc_messages.contents_bodies,
    "query of operators": operators.query_bodies,
}
MAKERS: Final[dict[str, Maker]] = GATHER_MAKERS | OPERATOR_MAKERS
