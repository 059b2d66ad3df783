"""Every request of the table that is refused."""

from __future__ import annotations

from tests.conformance.block_quantized import BLOCK_QUANTIZED_REFUSED
from tests.conformance.refused_bounds import REFUSED_BOUNDS
from tests.conformance.refused_fields import REFUSED_FIELDS
from tests.conformance.refused_gathers import REFUSED_GATHERS
from tests.conformance.refused_operators import REFUSED_OPERATORS
from tests.conformance.refused_rules import REFUSED_RULES
from tests.conformance.traps import TRAPS
from tests.conformance.turns import TURNS

REFUSED = [
    *REFUSED_GATHERS, *REFUSED_OPERATORS, *REFUSED_FIELDS, *REFUSED_RULES, *REFUSED_BOUNDS, *TRAPS, *TURNS,
    *BLOCK_QUANTIZED_REFUSED,
]  # fmt: skip
