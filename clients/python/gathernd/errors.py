"""The exceptions of this package. Each error code of the service has its own class.

GatherNDError
├── TransportError                  no response, or one that cannot be parsed
│   ├── ConnectError                no connection was made: nothing was sent
│   │   └── UntrustedCertificate    the service's certificate is not trusted
│   ├── Timeout (also TimeoutError) the service took longer than the client's timeout
│   ├── Disconnected                the connection broke during the exchange
│   └── UnexpectedAnswer            a response that is not from the service, such as a proxy's page
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
    """Base class of all exceptions that this package defines."""


class TransportError(GatherNDError):
    """No response was received, or the response cannot be parsed."""


class ConnectError(TransportError):
    """No connection could be made; nothing was sent."""


class UntrustedCertificate(ConnectError):
    """The service's certificate is not trusted, has expired or is for another host; nothing was sent."""


class Timeout(TransportError, TimeoutError):
    """The service took longer than the client's timeout. It may still have made the change."""


class Disconnected(TransportError):
    """The connection broke during the exchange. The service may still have made the change."""


class UnexpectedAnswer(TransportError):
    """A response that is not from the service, such as a proxy's page; `status` is its HTTP status."""

    def __init__(self, detail: str, status: int) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class Rule:
    """The operator's rule that was broken; `clause` is its number in the dialect's text, or None."""

    dialect: str
    clause: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """One invalid place in the request; members that do not apply are None.

    `pointer` is a JSON pointer into the request, `position` the coordinates within the tensor, `axis` an axis of data,
    `size` the size of that axis, and `allowed` its lowest and highest valid index (None if the size is 0). `offset` is
    the byte offset in a JSON text of more than 1 MiB.
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
    code         error code; the service explains it at /errors/CODE
    title        the code in words
    detail       one sentence about this request
    hint         one sentence on how to fix it, shown below the message, or None
    rule         the operator's rule that was broken, or None
    errors       the invalid places in the request, at most ten
    total        number of invalid places
    limit        name of the limit that was exceeded, with its value `maximum`, or None
    request_id   ID of the request in the service's log
    retry_after  seconds to wait before a retry, or None
    body         the error body as received
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
    """The body is not valid for its Content-Type."""

    code = "malformed_request"


class Unauthorized(ServiceError):
    """The service requires an API key: pass `key`."""

    code = "unauthorized"


class Forbidden(ServiceError):
    """The key does not have the required scope, or tensors may not be changed from here."""

    code = "forbidden"


class NotFound(ServiceError):
    """No route has this path; the URL may not be the service's."""

    code = "not_found"


class MethodNotAllowed(ServiceError):
    """The route does not accept this method: the service may be older than this client."""

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
    """The name is taken: tensors and aliases share one namespace, and one of the other kind has this name."""

    code = "name_conflict"


class TensorInUse(ServiceError):
    """The tensor or version cannot be removed, because an alias points to it."""

    code = "tensor_in_use"


class PreconditionFailed(ServiceError):
    """`if_match` or `if_none_match` does not hold for the current tensor or alias.

    In a cluster, this is also raised if a scatter is retried with its Idempotency-Key after the version to which it was
    first sent was removed.
    """

    code = "precondition_failed"


class RangeNotSatisfiable(ServiceError):
    """The requested rows are outside the tensor."""

    code = "range_not_satisfiable"


class PayloadTooLarge(ServiceError):
    """The request exceeds the service's limit; upload the data once and gather by name."""

    code = "payload_too_large"


class UnsupportedMediaType(ServiceError):
    """The route does not read this format."""

    code = "unsupported_media_type"


class InvalidField(ServiceError):
    """A field is missing, is unknown or has an invalid value."""

    code = "invalid_field"


class UnsupportedDtype(ServiceError):
    """The dialect does not allow this element type, for data or for indices."""

    code = "unsupported_dtype"


class ValueNotRepresentable(ServiceError):
    """The dtype cannot represent a value."""

    code = "value_not_representable"


class ElementCountMismatch(ServiceError):
    """The number of items does not match the shape."""

    code = "element_count_mismatch"


class RankTooSmall(ServiceError):
    """Data or indices have too few dimensions."""

    code = "rank_too_small"


class RankMismatch(ServiceError):
    """Indices and data have different ranks."""

    code = "rank_mismatch"


class BatchDimsOutOfRange(ServiceError):
    """batch_dims is negative, or not less than both ranks."""

    code = "batch_dims_out_of_range"


class BatchShapeMismatch(ServiceError):
    """The first batch_dims dimensions of data and indices differ."""

    code = "batch_shape_mismatch"


class IndexDepthOutOfRange(ServiceError):
    """The last dimension of indices is 0, or more than the number of axes of data that can be indexed."""

    code = "index_depth_out_of_range"


class AxisOutOfRange(ServiceError):
    """Data has no such axis."""

    code = "axis_out_of_range"


class IndicesShapeMismatch(ServiceError):
    """Indices are larger than data on an axis other than the gather axis."""

    code = "indices_shape_mismatch"


class IndexOutOfBounds(ServiceError, IndexError):
    """An index is outside its axis of data; `errors` has the first ten such indices, and `total` counts all."""

    code = "index_out_of_bounds"


class OutputTooLarge(ServiceError):
    """The output would exceed the service's limit."""

    code = "output_too_large"


class LimitExceeded(ServiceError):
    """A rank, a size or an item count exceeds the service's limit; see `limit` and `maximum`."""

    code = "limit_exceeded"


class UpdatesShapeMismatch(ServiceError):
    """The updates of a scatter differ in shape or type from the slices that they replace."""

    code = "updates_shape_mismatch"


class OffsetsInvalid(ServiceError):
    """The offsets of a lookup's bags do not begin with 0, decrease, or exceed the number of indices."""

    code = "offsets_invalid"


class FeatureMismatch(ServiceError):
    """The outputs of a lookup's features differ in type or number of rows, and so cannot be joined."""

    code = "feature_mismatch"


class DeviceUnavailable(ServiceError):
    """The service has no GPU, or its GPU does not support this type."""

    code = "device_unavailable"


class NoKeys(ServiceError):
    """The request selects rows by key, but the table has no keys."""

    code = "no_keys"


class KeyNotFound(ServiceError, LookupError):
    """The table does not have a key; `errors` has the first ten missing keys, and `total` counts all."""

    code = "key_not_found"


class KeysNotUnique(ServiceError):
    """A key column has duplicate keys; `errors` has the positions of the first ten duplicates."""

    code = "keys_not_unique"


class Overloaded(ServiceError):
    """The service is overloaded and did nothing; retry later."""

    code = "overloaded"


class NotReady(ServiceError):
    """The service is starting or shutting down."""

    code = "not_ready"


class DeadlineExceeded(ServiceError):
    """The request did not finish before its deadline."""

    code = "deadline_exceeded"


class NotOffered(ServiceError):
    """The service does not offer this call of a protocol."""

    code = "not_implemented"


class ShardUnavailable(ServiceError):
    """For some of the requested rows, no replica responds. Other rows of the table are available; retry later.

    The outcome of a scatter is unknown: retry it with its Idempotency-Key, which is in a note of the error.
    """

    code = "shard_unavailable"


class TensorDamaged(ServiceError):
    """The file of this resident tensor is damaged; upload it again."""

    code = "tensor_damaged"


class ImportFailed(ServiceError):
    """The service could not read the file at the URL of an import; nothing was changed."""

    code = "import_failed"


class InsufficientStorage(ServiceError):
    """The service's disk is full; the tensor is unchanged."""

    code = "insufficient_storage"


class InternalError(ServiceError):
    """The service failed; its log has the `request_id`."""

    code = "internal"


BY_CODE: Final[Mapping[str, type[ServiceError]]] = MappingProxyType(
    {kind.code: kind for kind in ServiceError.__subclasses__()}
)
"""The exception class for each error code. Unknown codes raise a plain `ServiceError`."""


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
