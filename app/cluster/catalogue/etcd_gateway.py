"""etcd's JSON gateway over HTTP: requests to any member that responds, and streams of messages."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import httpx
import orjson

from app.cluster.catalogue.etcd_errors import EtcdFailed
from app.cluster.catalogue.records import TooLarge

_PATIENCE: Final = httpx.Timeout(5.0, connect=2.0)
_STREAM_PATIENCE: Final = httpx.Timeout(10.0, connect=2.0)
"""A stream ends after this many seconds of silence, because the etcd member that sends it may be lost."""
_MOST_SHOWN: Final = 200
"""Maximum number of characters of a response quoted in messages."""
_TOO_LARGE: Final = ("request is too large", "too many operations")
"""etcd's messages for a transaction that exceeds --max-request-bytes or --max-txn-ops."""


class Gateway:
    """The members of one etcd cluster, at `endpoints`. Methods block, may raise EtcdFailed, and are thread-safe."""

    def __init__(self, endpoints: Sequence[str], tls: ssl.SSLContext | None) -> None:
        """Set up the client. `tls` holds the authorities for https; the default is the machine's authorities."""
        is_plain = endpoints[0].startswith("http:")
        self._http = httpx.Client(
            timeout=_PATIENCE,
            verify=False if is_plain else tls or ssl.create_default_context(),
            trust_env=False,
        )
        self._endpoints = endpoints
        self._first = 0
        """A counter that selects the first endpoint to try: the one that last responded."""

    def ask(self, path: str, body: Mapping[str, Any], *, may_repeat: bool = True) -> Any:
        """Send a request to the endpoints in turn until one responds.

        If the outcome of an attempt is unknown, the next endpoint is tried only if `may_repeat` is true. Raises
        EtcdFailed and TooLarge.
        """
        why = ""
        for turn in range(len(self._endpoints)):
            endpoint = self._endpoints[(self._first + turn) % len(self._endpoints)]
            try:
                answer = self._http.post(endpoint + path, content=orjson.dumps(body))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = f"{endpoint}: {error}"
                continue
            except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
                why = f"{endpoint}: {str(error) or type(error).__name__}"
                if may_repeat:
                    continue
                break
            found = _document(answer.content)
            if answer.status_code == 200 and _is_etcd_response(found):
                self._first += turn
                return found
            said = found.get("message", f"status {answer.status_code}, which is not an answer of etcd")
            why = f"{endpoint}: {said}"
            if any(text in why for text in _TOO_LARGE):
                raise TooLarge(why)
            if not may_repeat:
                break
        self._first += 1
        raise EtcdFailed(f"etcd does not answer: {why}")

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the messages from one endpoint until it has been silent for too long."""
        endpoint = self._endpoints[self._first % len(self._endpoints)]
        # With this field, a member that has lost contact with the others ends the stream; otherwise it would stay
        # silent.
        fields = {"Grpc-Metadata-hasleader": "true"}
        try:
            with self._http.stream(
                "POST", endpoint + path, content=orjson.dumps(body), headers=fields, timeout=_STREAM_PATIENCE
            ) as answer:
                for line in answer.iter_lines():
                    found = _document(line).get("result")
                    if not isinstance(found, dict):
                        raise EtcdFailed(f"etcd ends a stream: {line[:_MOST_SHOWN]}")
                    yield found
                raise EtcdFailed("etcd ends a stream")
        except httpx.ReadTimeout:
            return
        except (httpx.HTTPError, RuntimeError, OSError) as error:
            self._first += 1
            raise EtcdFailed(f"{endpoint}: {error}") from None

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _document(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Returns an empty object for anything else."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_etcd_response(found: Mapping[str, Any]) -> bool:
    """Return whether an object is a response from etcd.

    Every response has a header; in a stream, the header is inside `result`.
    """
    result = found.get("result", found)
    return isinstance(result, dict) and isinstance(result.get("header"), dict)
