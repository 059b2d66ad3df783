# `make sync-client` writes this file from _async/client.py.
"""The client: the calls of all modules beside this one, and resident tensors that are indexed as arrays are."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .._answers import TensorInfo
from .._selection import NamedTensor, Selection, select, version_of
from .._sync_waiting import WholeAsArray
from ..errors import RangeNotSatisfiable, TensorNotFound
from .aliases import Aliases
from .gathers import Gathers
from .gradients import Gradients
from .imports import Imports
from .scatters import Scatters
from .tensors import Tensors


class Client(Gathers, Gradients, Scatters, Tensors, Aliases, Imports):
    """A client of the service at `url`. Any number of threads may use it at once.

    url        where the service listens, by default GATHERND_URL, else http://127.0.0.1:8080; unix:/path for a Unix
               socket
    key        API key, where the service asks for one; by default GATHERND_API_KEY
    timeout    seconds that connecting, and each pause in sending or receiving, may take; or an httpx.Timeout
    retries    how often a request may be sent again where that is safe; `Retries` limits the time it may take, too
    headers    further header fields of every request
    verify     whom HTTPS trusts: True (public authorities), a file or folder of authorities, an ssl.SSLContext, or
               False (anybody: for tests); by default GATHERND_CA, a file or folder, else True
    cert       the client's own certificate: a file, or (certificate, key) or (certificate, key, password)
    transport  an httpx transport to use instead of the network, for tests and for HTTP/2

    Arrays may be NumPy arrays, PyTorch's, JAX's and CuPy's, anything with `__array__` or DLPack, or lists. They travel
    in the binary format; types that it lacks (complex128 and string) go as JSON with base64.

    Gathers raise IndexOutOfBounds for an index outside of its axis; `out_of_bounds` asks for clip (the nearest valid
    index), wrap (modulo the size of the axis) or fill (the slice is filled with `fill_value`, 0 unless given) in its
    place, and a Result says how many were `replaced`. `gather` in the dialect openvino-8 fills unless it is asked for
    something else, such as error. `output_dtype`, the name of a float type or NumPy's type, asks gathers and lookups of
    floats for an output of that type, each item rounded once.

    Calls take `timeout`, the seconds that the whole call may take, which the service is told too (X-Gathernd-Timeout),
    and `headers`, further header fields. They raise `ServiceError`s (one class for each code, in `gathernd.errors`) and
    `TransportError`s, and TypeError for an array of a type that the service does not have.

    A proxy that the environment names (HTTPS_PROXY, NO_PROXY) is used. Raises ValueError for a URL without a scheme.
    """

    def __getitem__(self, name: str) -> ResidentTensor:
        """The resident tensor `name`, to be indexed as a NumPy array: client["items"][5:7]."""
        return ResidentTensor(self, name)


class ResidentTensor(WholeAsArray, NamedTensor):
    """`client["items"]`: `[5:7]`, `[-1]`, `[[3, 8]]` and `[rows, columns]` are arrays, as from a NumPy array.

    numpy.asarray() of it is the whole tensor. Raises TensorNotFound, and IndexOutOfBounds (an IndexError).
    """

    def __init__(self, client: Client, name: str) -> None:
        super().__init__(name)
        self._client = client

    def __getitem__(self, key: Any) -> NDArray[Any]:
        found = select(key, None)
        if found is not None and isinstance(key, slice):
            try:
                return self._client.get(self.name, rows=found.argument)
            except RangeNotSatisfiable:  # a slice may end beyond the last row
                found = None
        if found is not None:
            return self._read(self.name, found)
        info = self.info()
        while True:
            found = select(key, info.shape)
            assert found is not None
            try:
                return self._read(version_of(info), found)
            except TensorNotFound:  # the tensor was replaced meanwhile, or removed
                before, info = info, self.info()
                if info.version == before.version:
                    raise

    def _read(self, name: str, found: Selection) -> NDArray[Any]:
        if found.call == "get":
            return self._client.get(name, rows=found.argument)
        gather = self._client.gather if found.call == "gather" else self._client.gathernd
        return gather(name, found.argument)

    def info(self) -> TensorInfo:
        """Type, shape, ETag and times of the tensor."""
        return self._client.metadata(self.name)
