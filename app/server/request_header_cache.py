"""Request headers that came before: what the parser and the data plane made of the very same bytes.

A caller sends the same header again and again, and to read it takes longer than a small gather. So the bytes of the
headers of gathers that were answered are kept, with what was found in them; a request that begins with the same bytes
and comes in one piece needs neither parser nor checks of its fields. What keys say holds until they change.

From the first header that holds a key on, headers are kept by their SHA-256, so that no key stays in memory. To hash
costs a request a microsecond; a service that is sent no keys does without, and so does a connection's last header.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, NamedTuple

LARGEST: Final = 1 << 11
"""Most bytes of a header that is kept."""
_MOST: Final = 1 << 10
_OWN: Final = ("client", "server", "state", "extensions")
_SINGULAR: Final = frozenset((b"x-request-id", b"traceparent", b"idempotency-key", b"expect", b"transfer-encoding"))


class CachedHeader(NamedTuple):
    """A header: its ASGI scope without what belongs to a connection, the bytes of the body that follow it, and what the
    application found, for its own use.
    """

    scope: dict[str, Any]
    length: int
    route_match: Any


known: Final[dict[bytes, CachedHeader]] = {}
"""By the bytes of the header, from the method to the empty line, or, where `hashed` says so, by their SHA-256."""
hashed = False


def clear() -> None:
    """Forget all headers, as when other keys are in force."""
    known.clear()


def remember(head: bytes, scope: dict[str, Any], length: int, route_match: Any, *, secret: bool) -> None:
    """Keep a header of HTTP/1.1 that was followed by a body of the declared `length`, on a connection that stays.

    `secret` says that it holds a key, which `scope` and `route_match` do not.
    """
    global hashed  # noqa: PLW0603  (read for each request, as `known` is)
    if secret and not hashed:
        hashed = True
        known.clear()
    fields = scope["headers"]
    if not any(name in _SINGULAR for name, _ in fields) and (b"content-length", b"%d" % length) in fields:
        if len(known) >= _MOST:
            known.clear()
        common = {name: value for name, value in scope.items() if name not in _OWN}
        known[sha256(head).digest() if hashed else head] = CachedHeader(common, length, route_match)
