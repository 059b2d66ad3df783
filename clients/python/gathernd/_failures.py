"""Messages of network errors. Each includes the service's URL and, if known, the call and the elapsed seconds."""

from __future__ import annotations

import os
import ssl
from typing import Any, Final

from ._messages import Request
from .errors import ConnectError, Disconnected, Timeout, UntrustedCertificate

_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
"""OpenSSL's reasons for an answer that is not TLS."""
# OpenSSL's codes for certificate errors (X509_V_ERR_...).
_OF_ANOTHER_TIME: Final = frozenset((9, 10))
_OF_ANOTHER_NAME: Final = frozenset((62, 64))


def not_connected(url: str, error: BaseException | str) -> ConnectError:
    """Return the error for a connection that could not be made, with the reason `error`."""
    problem = None if isinstance(error, str) else certificate_problem(error)
    if problem is not None:
        return UntrustedCertificate(f"cannot reach {url}: {problem}")
    reason = error if isinstance(error, str) else reason_of(error)
    hint = "; is it running?" if "refused" in reason else ""
    return ConnectError(f"cannot reach {url}: {reason}{hint}")


def not_connected_in_time(url: str, seconds: float | None) -> ConnectError:
    """Return the error for a connection that was not made within `seconds`."""
    return ConnectError(f"cannot reach {url}: no connection within {seconds_text(seconds)}")


def not_answered_in_time(url: str, request: Request[Any], seconds: float | None, doing: str) -> Timeout:
    """Return the error for a service that took longer than `seconds`; `doing` is a participle: answered, taken."""
    return Timeout(f"{url} has not {doing} {request} within {seconds_text(seconds)}")


def disconnected(url: str, request: Request[Any], seconds: float, error: BaseException | str) -> Disconnected:
    """Return the error for a connection that broke `seconds` after the request began."""
    reason = error if isinstance(error, str) else reason_of(error)
    return Disconnected(f"the connection to {url} broke during {request}, after {seconds_text(seconds)}: {reason}")


def seconds_text(seconds: float | None) -> str:
    """Format seconds, as in `0.25 s`."""
    return "a time without limit" if seconds is None else f"{seconds:.3g} s"


def certificate_problem(error: BaseException) -> str | None:
    """Describe the certificate error in `error` or its causes, with a hint. Returns None if there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    text = f"{cause.verify_message[:1].lower()}{cause.verify_message[1:]}".rstrip(".")
    if cause.verify_code in _OF_ANOTHER_NAME:
        hint = "; use a URL with a name of the certificate"
    elif cause.verify_code in _OF_ANOTHER_TIME:
        hint = "; have its operator renew it, and compare the clocks"
    else:
        hint = "; name the file of its authority in GATHERND_CA, with --ca or with verify="
    return f"its certificate is not trusted: {text}{hint}"


def refuses_our_certificate(error: BaseException | None) -> bool:
    """Return True if the service closed the connection because the client sent no certificate that it trusts."""
    reason = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def reason_of(error: BaseException) -> str:
    """Return the reason of an operating-system or TLS error in words, without its number."""
    text = str(error)
    if isinstance(error, ssl.SSLError):
        text = (error.reason or text).replace("_", " ").lower()
        if error.reason in _NOT_TLS:
            text = "what answers there does not speak TLS; is its URL http://?"
    elif isinstance(error, OSError) and error.strerror:
        text = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"{text[0].lower()}{text[1:]}" if text else type(error).__name__
