"""The closed catalogue of errors: one row for each code, which says all that any transport or page tells of it.

The statuses are plain numbers and names: code below the transports raises errors and knows neither HTTP nor gRPC. The
bodies of answers, the pages at /errors/{code}, OpenAPI and the labels of metrics are made from the rows; tests hold
`docs/reference/errors.md` and the classes of the Python client equal to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.errors import operator_errors, service_errors, transfer_errors
from app.errors.row import ErrorRow

Code = transfer_errors.TransferCode | operator_errors.OperatorCode | service_errors.ServiceCode
CATALOGUE: Final[Mapping[Code, ErrorRow]] = dict(
    [*transfer_errors.ROWS.items(), *operator_errors.ROWS.items(), *service_errors.ROWS.items()]
)
CODES: Final[tuple[Code, ...]] = tuple(CATALOGUE)
