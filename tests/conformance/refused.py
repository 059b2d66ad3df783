"""Every request of the table that is refused."""

from __future__ import annotations

from tests.conformance.block_quantized import BLOCK_QUANTIZED_REFUSED
from tests.conformance.refused_fields import REFUSED_FIELDS
from tests.conformance.refused_gathers import REFUSED_GATHERS
from tests.conformance.refused_operators import REFUSED_OPERATORS
from tests.conformance.transports import FLAT
from tests.conformance.traps import TRAPS
from tests.conformance.turns import TURNS
from tests.http import provoked

REFUSED = [*REFUSED_GATHERS, *REFUSED_OPERATORS, *REFUSED_FIELDS, *TRAPS, *TURNS, *BLOCK_QUANTIZED_REFUSED]


def in_flat_json() -> list[provoked.Case]:
    """The requests as the service's own routes take them."""
    return [
        provoked.Case(
            each.error.code, FLAT.body(each), [dict(place) for place in each.error.places or ()] or None, each.path
        )
        for each in REFUSED
        if each.error is not None and not each.error.only_code
    ]
