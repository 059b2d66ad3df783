"""The messages of what the network breaks: each names the service's URL, the call and the seconds."""

from __future__ import annotations

import os
import ssl
from typing import Any

from ._messages import Request
from .errors import ConnectError, Disconnected, Timeout

_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
"""What OpenSSL says of an answer that is no TLS."""


def not_connected(url: str, error: BaseException | str) -> ConnectError:
    """No connection could be made, for the reason `error`."""
    reason = error if isinstance(error, str) else reason_of(error)
    hint = "; is it running?" if "refused" in reason else ""
    return ConnectError(f"cannot reach {url}: {reason}{hint}")


def not_connected_in_time(url: str, seconds: float | None) -> ConnectError:
    """No connection was made within the seconds that it may take."""
    return ConnectError(f"cannot reach {url}: no connection within {seconds_text(seconds)}")


def not_answered_in_time(url: str, request: Request[Any], seconds: float | None, doing: str) -> Timeout:
    """The service took longer than the client waits; `doing` is what took so long: answered, taken."""
    return Timeout(f"{url} has not {doing} {request} within {seconds_text(seconds)}")


def disconnected(url: str, request: Request[Any], seconds: float, error: BaseException | str) -> Disconnected:
    """The connection broke `seconds` after the request was begun."""
    reason = error if isinstance(error, str) else reason_of(error)
    return Disconnected(f"the connection to {url} broke during {request}, after {seconds_text(seconds)}: {reason}")


def seconds_text(seconds: float | None) -> str:
    """Seconds as text, as in `0.25 s`."""
    return "a time without limit" if seconds is None else f"{seconds:.3g} s"


def reason_of(error: BaseException) -> str:
    """What an error of the operating system or of TLS says, in words and without its number."""
    text = str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate is not trusted: {error.verify_message}"
    elif isinstance(error, ssl.SSLError):
        text = (error.reason or text).replace("_", " ").lower()
        if error.reason in _NOT_TLS:
            text = "what answers there does not speak TLS; is its URL http://?"
    elif isinstance(error, OSError) and error.strerror:
        text = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"{text[0].lower()}{text[1:]}" if text else type(error).__name__
