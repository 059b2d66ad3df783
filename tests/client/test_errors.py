"""The client's exceptions are the service's catalogue, one class for each code."""

from __future__ import annotations

import inspect
import pickle

import httpx

import gathernd
from app.errors import CODES
from gathernd import errors
from gathernd._endpoints import metadata
from gathernd._httpx_transport import transport_error
from tests.for_each import for_each


def test_there_is_one_class_for_each_code_of_the_catalogue() -> None:
    assert set(errors.BY_CODE) == set(CODES)
    assert len({kind.__name__ for kind in errors.BY_CODE.values()}) == len(CODES)
    for code, kind in errors.BY_CODE.items():
        assert getattr(errors, kind.__name__) is kind
        assert kind.code == code
        assert issubclass(kind, gathernd.ServiceError)


def test_every_exception_is_one_of_ours() -> None:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert all(issubclass(kind, gathernd.GatherNDError) for kind in found)


def test_the_public_names_are_these() -> None:
    assert gathernd.__all__ == [
        "Alias", "AsyncClient", "Client", "Feature", "GatherNDError", "ImportInfo", "KeysInfo", "LookupResult",
        "Result", "Retries", "RowsChanged", "ScatterInfo", "ServiceError", "SparseGradient", "TableRange", "TensorInfo",
        "TransportError", "__version__", "errors", "features_of", "gather", "gather_elements", "gathernd",
    ]  # fmt: skip


def _leaves(kind: type[httpx.HTTPError]) -> list[type[httpx.HTTPError]]:
    return [kind, *(leaf for below in kind.__subclasses__() for leaf in _leaves(below))]


@for_each("kind", _leaves(httpx.TransportError))
def test_every_error_of_httpx_becomes_one_of_ours(kind: type[httpx.HTTPError]) -> None:
    made = transport_error(kind("what happened"), "http://service", metadata("items"), 1.5)
    assert isinstance(made, errors.TransportError)
    assert "http://service" in str(made)
    assert isinstance(made, errors.Timeout) or "what happened" in str(made)
    if issubclass(kind, httpx.ConnectError | httpx.ConnectTimeout):
        assert type(made) is errors.ConnectError
    elif issubclass(kind, httpx.ReadTimeout | httpx.WriteTimeout):
        assert type(made) is errors.Timeout
    elif issubclass(kind, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError):
        assert type(made) is errors.Disconnected


def test_an_error_survives_pickling_between_processes() -> None:
    body = {"code": "index_out_of_bounds", "detail": "no", "errors": [{"pointer": "/indices", "position": [1]}]}
    error = errors.IndexOutOfBounds(422, body, 1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.IndexOutOfBounds
    assert (copy.status, copy.body, copy.retry_after, copy.errors) == (422, body, 1.5, error.errors)
