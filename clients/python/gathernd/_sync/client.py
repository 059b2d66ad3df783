# `make sync-client` writes this file from _async/client.py.
"""The client, which combines the calls of all modules in this folder, and resident tensors that are indexed like
arrays.
"""

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
    retries    maximum number of retries of a request, if a retry is safe; `Retries` also limits the time
    headers    additional header fields of every request
    verify     certificates to trust for HTTPS: True (public authorities), a file or folder of authorities, an
               ssl.SSLContext, or False (no check, for tests); default: GATHERND_CA, a file or folder, else True
    cert       the client's own certificate: a file, or (certificate, key) or (certificate, key, password)
    transport  an httpx transport to use instead of the network, for tests and for HTTP/2

    Arrays may be NumPy, PyTorch, JAX or CuPy arrays, any object with `__array__` or DLPack, or lists. They are sent in
    a binary format; types that this format lacks (complex128 and string) are sent as JSON with base64.

    Gathers raise IndexOutOfBounds for an index outside its axis. `out_of_bounds` selects another behavior: clip (use
    the nearest valid index), wrap (take the index modulo the size of the axis) or fill (return a slice of `fill_value`,
    default 0). `replaced` in a Result counts such indices. In the dialect openvino-8, `gather` defaults to fill.
    `output_dtype`, a float type or its name, sets the type of a float output of gathers and lookups; each item is
    rounded once.

    Calls accept `timeout`, the time limit for the whole call in seconds, which is also sent to the service
    (X-Gathernd-Timeout), and `headers`, additional header fields. They raise `ServiceError` (with a subclass for each
    code in `gathernd.errors`), `TransportError`, and TypeError for an array of an unsupported type.

    Uses the proxies in the environment (HTTPS_PROXY, NO_PROXY). Raises ValueError for a URL without a scheme.
    """

    def __getitem__(self, name: str) -> ResidentTensor:
        """Return the resident tensor `name`, which is indexed like a NumPy array: client["items"][5:7]."""
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
            except RangeNotSatisfiable:  # a slice may extend past the last row
                found = None
        if found is not None:
            return self._read(self.name, found)
        info = self.info()
        while True:
            found = select(key, info.shape)
            assert found is not None
            try:
                return self._read(version_of(info), found)
            except TensorNotFound:  # the tensor may have been replaced or removed since `info()`
                before, info = info, self.info()
                if info.version == before.version:
                    raise

    def _read(self, name: str, found: Selection) -> NDArray[Any]:
        if found.call == "get":
            return self._client.get(name, rows=found.argument)
        gather = self._client.gather if found.call == "gather" else self._client.gathernd
        return gather(name, found.argument)

    def info(self) -> TensorInfo:
        """Return the tensor's metadata: type, shape, ETag and times."""
        return self._client.metadata(self.name)
