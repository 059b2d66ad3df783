"""What can go wrong, as exceptions; the service's errors have one class for each code of its catalogue.

GatherNDError
├── TransportError                  no answer, or none that can be understood
│   ├── ConnectError                no connection was made: nothing was sent
│   │   └── UntrustedCertificate    the service's certificate is not trusted
│   ├── Timeout (also TimeoutError) the service took longer than the client's timeout
│   ├── Disconnected                the connection broke during the exchange
│   └── UnexpectedAnswer            an answer that is not the service's, such as a proxy's page
└── ServiceError                    the service refused; its fields say what and where
    ├── MalformedRequest            and so on, see `BY_CODE`
    ├── TensorNotFound (also a LookupError)
    └── IndexOutOfBounds (also an IndexError)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final


class GatherNDError(Exception):
    """Base of everything that this package raises of its own."""


class TransportError(GatherNDError):
    """There is no answer, or none that can be understood."""


class ConnectError(TransportError):
    """No connection could be made; nothing was sent."""


class UntrustedCertificate(ConnectError):
    """The service's certificate is not trusted, has expired or is of another name; nothing was sent."""


class Timeout(TransportError, TimeoutError):
    """The service took longer than the client's timeout. A change may have been made all the same."""


class Disconnected(TransportError):
    """The connection broke during the exchange. A change may have been made all the same."""


class UnexpectedAnswer(TransportError):
    """An answer that is not the service's, such as a proxy's page; `status` is its HTTP status."""

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Rule:
    """The operator's rule that was broken; `clause` is its number in the dialect's text, None if that has none."""

    dialect: str
    clause: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """One place in the request that is wrong; members that do not apply are None.

    `pointer` is a JSON pointer into the request, `position` the coordinates within the tensor, `axis` an axis of data
    of size `size`, and `allowed` the lowest and highest value there (None on an axis of size 0). `offset` is the byte
    of a JSON text of more than 1 MiB.
    """

    pointer: str
    position: tuple[int, ...] | None = None
    value: Any = None
    axis: int | None = None
    size: int | None = None
    allowed: tuple[int, int] | None = None
    offset: int | None = None


class ServiceError(GatherNDError):
    """The service refused the request.

    status       HTTP status
    code         which error of the catalogue; the page /errors/CODE of the service explains it
    title        the code in words
    detail       one sentence about this request
    hint         one sentence on how to mend it, shown below the message; None if the service gives none
    rule         the operator's rule that was broken, or None
    errors       where in the request, at most ten places
    total        how many places there are in all
    limit        name of the limit that was exceeded, with its value `maximum`, or None
    request_id   by which the service's log knows the request
    retry_after  seconds after which to try again, or None
    body         the error body as it came
    """

    code: str = ""

    def __init__(self, status: int, body: Mapping[str, Any], retry_after: float | None = None) -> None:
        self.status = status
        self.code = str(body.get("code", self.code))
        self.title = str(body.get("title", ""))
        self.detail = str(body.get("detail", ""))
        self.hint: str | None = body.get("hint")
        self.rule = _rule(body.get("rule"))
        self.errors = tuple(_place(place) for place in body.get("errors") or ())
        self.total = int(body.get("total", len(self.errors)))
        self.limit: str | None = body.get("limit")
        self.maximum: int | None = body.get("maximum")
        self.request_id = str(body.get("request_id", ""))
        self.retry_after = retry_after
        self.body = dict(body)
        super().__init__(f"{self.code}: {self.detail}")
        if self.hint is not None:
            self.add_note(str(self.hint))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.body, self.retry_after)


class MalformedRequest(ServiceError):
    """The body could not be read as what its Content-Type says."""

    code = "malformed_request"


class Unauthorized(ServiceError):
    """The service asks for a key: pass `key`."""

    code = "unauthorized"


class Forbidden(ServiceError):
    """The key lacks the scope, or tensors may not be changed from here."""

    code = "forbidden"


class NotFound(ServiceError):
    """No route has this path: the URL may not be that of the service."""

    code = "not_found"


class MethodNotAllowed(ServiceError):
    """The route does not take this method: the service may be older than this client."""

    code = "method_not_allowed"


class TensorNotFound(ServiceError, LookupError):
    """No resident tensor has this name."""

    code = "tensor_not_found"


class ModelNotFound(ServiceError):
    """No model has this name or version."""

    code = "model_not_found"


class RequestTimeout(ServiceError):
    """The request did not arrive in time."""

    code = "request_timeout"


class HeaderTooLarge(ServiceError):
    """The request's header is too large."""

    code = "header_too_large"


class NameConflict(ServiceError):
    """Tensors and aliases share one set of names, and the name belongs to the other kind."""

    code = "name_conflict"


class TensorInUse(ServiceError):
    """An alias names the tensor, or the version, that was to be removed."""

    code = "tensor_in_use"


class PreconditionFailed(ServiceError):
    """`if_match` or `if_none_match` does not hold for the tensor, or the alias, as it is now.

    In a cluster also: the version that a scatter was sent to under its Idempotency-Key was removed.
    """

    code = "precondition_failed"


class RangeNotSatisfiable(ServiceError):
    """The rows asked for are not rows of the tensor."""

    code = "range_not_satisfiable"


class PayloadTooLarge(ServiceError):
    """The request is over the service's limit; put the data once and gather by its name."""

    code = "payload_too_large"


class UnsupportedMediaType(ServiceError):
    """The route does not read this format."""

    code = "unsupported_media_type"


class InvalidField(ServiceError):
    """A field is missing, unknown or not one of the values it may have."""

    code = "invalid_field"


class UnsupportedDtype(ServiceError):
    """The dialect does not allow this element type, for data or for indices."""

    code = "unsupported_dtype"


class ValueNotRepresentable(ServiceError):
    """A value cannot be held by its dtype."""

    code = "value_not_representable"


class ElementCountMismatch(ServiceError):
    """The number of items is not what the shape asks for."""

    code = "element_count_mismatch"


class RankTooSmall(ServiceError):
    """Data or indices have too few dimensions."""

    code = "rank_too_small"


class RankMismatch(ServiceError):
    """Indices have not as many dimensions as data."""

    code = "rank_mismatch"


class BatchDimsOutOfRange(ServiceError):
    """batch_dims is negative, or not less than both ranks."""

    code = "batch_dims_out_of_range"


class BatchShapeMismatch(ServiceError):
    """The first batch_dims dimensions of data and indices differ."""

    code = "batch_shape_mismatch"


class IndexDepthOutOfRange(ServiceError):
    """The last dimension of indices is 0, or more than the axes of data that can be indexed."""

    code = "index_depth_out_of_range"


class AxisOutOfRange(ServiceError):
    """The axis is not one of data."""

    code = "axis_out_of_range"


class IndicesShapeMismatch(ServiceError):
    """Indices are larger than data on another axis than the one to gather on."""

    code = "indices_shape_mismatch"


class IndexOutOfBounds(ServiceError, IndexError):
    """An index is outside its axis of data: `errors` has the first ten, `total` counts all."""

    code = "index_out_of_bounds"


class OutputTooLarge(ServiceError):
    """The output would be over the service's limit."""

    code = "output_too_large"


class LimitExceeded(ServiceError):
    """A rank, a size or an item count is over the service's limit: `limit` and `maximum` say which."""

    code = "limit_exceeded"


class UpdatesShapeMismatch(ServiceError):
    """The updates of a scatter have another shape or type than the slices they replace."""

    code = "updates_shape_mismatch"


class OffsetsInvalid(ServiceError):
    """The offsets of a lookup's bags do not begin with 0, fall, or exceed the number of indices."""

    code = "offsets_invalid"


class FeatureMismatch(ServiceError):
    """The outputs of a lookup's features differ in type or number of rows, and so cannot be joined."""

    code = "feature_mismatch"


class DeviceUnavailable(ServiceError):
    """The service has no GPU, or none that can hold this type."""

    code = "device_unavailable"


class NoKeys(ServiceError):
    """The table has no key column, and the request names its rows by key."""

    code = "no_keys"


class KeyNotFound(ServiceError, LookupError):
    """A key is not among those of the table; `errors` has the first ten, and `total` counts all."""

    code = "key_not_found"


class KeysNotUnique(ServiceError):
    """A key column has a key more than once; `errors` has the first ten positions that repeat one."""

    code = "keys_not_unique"


class Overloaded(ServiceError):
    """The service is at its limit; nothing was done."""

    code = "overloaded"


class NotReady(ServiceError):
    """The service is starting or being stopped."""

    code = "not_ready"


class DeadlineExceeded(ServiceError):
    """The work was not done before the service's deadline."""

    code = "deadline_exceeded"


class NotOffered(ServiceError):
    """The service does not offer this call of a protocol."""

    code = "not_implemented"


class ShardUnavailable(ServiceError):
    """No replica of rows that the request needs answers; others of the table can be had, and these later.

    Whether a scatter was made is not known: repeat it under its Idempotency-Key, which a note of the error names.
    """

    code = "shard_unavailable"


class TensorDamaged(ServiceError):
    """The file of this resident tensor is damaged; put it again."""

    code = "tensor_damaged"


class ImportFailed(ServiceError):
    """The service could not read the file at the URL of an import; nothing was changed."""

    code = "import_failed"


class InsufficientStorage(ServiceError):
    """The service's disk is full; the old content of the tensor is as it was."""

    code = "insufficient_storage"


class InternalError(ServiceError):
    """The service failed; its log has the `request_id`."""

    code = "internal"


BY_CODE: Final[Mapping[str, type[ServiceError]]] = MappingProxyType(
    {kind.code: kind for kind in ServiceError.__subclasses__()}
)
"""The class of each code. A code that this client does not know is a plain `ServiceError`."""


def _rule(body: Any) -> Rule | None:
    if not isinstance(body, Mapping):
        return None
    return Rule(str(body.get("dialect", "")), body.get("clause"), str(body.get("text", "")))


def _place(body: Mapping[str, Any]) -> Place:
    position, allowed = body.get("position"), body.get("allowed")
    return Place(
        str(body.get("pointer", "")),
        None if position is None else tuple(position),
        body.get("value"),
        body.get("axis"),
        body.get("size"),
        None if allowed is None else (allowed[0], allowed[1]),
        body.get("offset"),
    )
