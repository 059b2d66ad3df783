# `make sync-client` writes this file from _async/client.py.
"""The client: the calls of all modules in this folder, and resident tensors that are indexed like arrays."""

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

    url        address of the service (default: GATHERND_URL, else http://127.0.0.1:8080); unix:/path for a Unix socket
    key        API key, if the service requires one (default: GATHERND_API_KEY)
    timeout    seconds for connecting, and for each pause in sending or receiving; or an httpx.Timeout
    retries    how often a request may be sent again if that is safe; `Retries` also limits the time
    headers    further header fields of every request
    verify     trust of HTTPS: True (public authorities), a file or folder of authorities, an ssl.SSLContext, or False
               (no check, for tests); default: GATHERND_CA, a file or folder, else True
    cert       the client's own certificate: a file, or (certificate, key) or (certificate, key, password)
    transport  an httpx transport to use instead of the network, for tests and for HTTP/2

    Arrays may be NumPy, PyTorch, JAX or CuPy arrays, anything with `__array__` or DLPack, or lists. They are sent in a
    binary format; types that it lacks (complex128 and string) are sent as JSON with base64.

    Gathers raise IndexOutOfBounds for an index outside its axis. `out_of_bounds` picks clip (the nearest valid index),
    wrap (modulo the size of the axis) or fill (a slice of `fill_value`, 0 unless given) instead; a Result counts the
    `replaced` ones. The default of `gather` in the dialect openvino-8 is fill. `output_dtype`, the name of a float type
    or NumPy's type, sets the type of a float output of gathers and lookups; each item is rounded once.

    Calls take `timeout`, the seconds for the whole call, which the service also gets (X-Gathernd-Timeout), and
    `headers`, further header fields. They raise `ServiceError`s (one class for each code, in `gathernd.errors`) and
    `TransportError`s, and TypeError for an array of a type that the service does not support.

    Proxies in the environment (HTTPS_PROXY, NO_PROXY) are used. Raises ValueError for a URL without a scheme.
    """

    def __getitem__(self, name: str) -> ResidentTensor:
        """The resident tensor `name`, indexed like a NumPy array: client["items"][5:7]."""
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
            except TensorNotFound:  # the tensor was replaced or removed meanwhile
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
