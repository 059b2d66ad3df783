"""Imports, which are tensors that the service reads from a URL: the requests, and the parsers of their answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from ._answers import TensorInfo, json_document, tensor_info
from ._endpoints import JSON, check_name, conditions
from ._messages import Answer, Progress, Request
from ._progress_bar import ProgressBar
from .errors import BY_CODE, ServiceError, UnexpectedAnswer

_ID: Final = re.compile(r"[0-9a-zA-Z_-]{1,128}")
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""Maximum seconds between two progress checks. The pause grows by half with each check."""


@dataclass(frozen=True, slots=True)
class ImportInfo:
    """The state of an import.

    id           its ID, for `find_import` and `end_import`
    name         tensor whose next version it creates
    url          URL that it reads, without the query
    state        running, done, failed or cancelled
    bytes_done   bytes of items read so far, out of `bytes_total`
    error        the error if it failed (not raised here), else None
    info         metadata of the new version if the import is done, else None
    """

    id: str
    name: str
    url: str
    state: str
    bytes_done: int
    bytes_total: int
    error: ServiceError | None
    info: TensorInfo | None


@dataclass(frozen=True, slots=True)
class ImportPage:
    """A page of the list of imports; `next` is the `after` parameter of the next page, None on the last page."""

    imports: list[ImportInfo]
    next: str | None


def begin(
    name: str,
    url: str,
    tensor: str | None,
    keys: str | None,
    if_match: str | None,
    if_none_match: str | None,
    prefault: bool,
    lock: bool,
    keep: int | None,
    note: str | None,
    replicas: int | None,
) -> Request[ImportInfo]:
    """Build the request that starts an import. Not retryable: a second attempt would create another version."""
    check_name(name)
    query = {option: "true" for option, wanted in (("prefault", prefault), ("lock", lock)) if wanted}
    if keep is not None:
        query["keep"] = str(keep)
    if replicas is not None:
        query["replicas"] = str(replicas)
    asked = {"url": url, "tensor": tensor, "keys": keys, "note": note}
    body = json.dumps({field: value for field, value in asked.items() if value is not None}).encode()
    headers = {"content-type": JSON, "accept": JSON, **conditions(if_match, if_none_match)}
    return Request("POST", f"/tensors/{name}/import", _read_import, query, headers, [body], retryable=False)


def find(number: str) -> Request[ImportInfo]:
    """Build the request for the state of an import."""
    return Request("GET", _path(number), _read_import, headers={"accept": JSON})


def page(after: str | None, limit: int | None) -> Request[ImportPage]:
    """Build the request for one page of the list of imports."""
    query = {} if after is None else {"after": after}
    if limit is not None:
        query["limit"] = str(limit)
    return Request("GET", "/imports", _read_page, query, {"accept": JSON})


def end(number: str) -> Request[None]:
    """Build the request that ends an import. Not retryable: a second attempt would delete its record."""
    return Request("DELETE", _path(number), lambda _: None, headers={"accept": JSON}, retryable=False)


def outcome(found: ImportInfo) -> TensorInfo | None:
    """Return the metadata of an import's new version, or None while the import is running.

    Raises the import's error, or NotFound if the import was cancelled.
    """
    if found.error is not None:
        raise found.error
    if found.state == "cancelled":
        raise BY_CODE["not_found"](
            404, {"code": "not_found", "detail": f"the import {found.id} was ended by a request"}
        )
    return found.info


def progress_reporter(name: str, found: ImportInfo, progress: Progress | bool | None) -> Progress:
    """Return the function to call with the number of bytes done."""
    if progress is True:
        return ProgressBar(name, found.bytes_total)
    return progress or (lambda done: None)


def _path(number: str) -> str:
    if not _ID.fullmatch(number):
        raise ValueError(f"{number!r} is not the id of an import")
    return f"/imports/{number}"


def _read_import(answer: Answer) -> ImportInfo:
    try:
        return _import_info(json_document(answer))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not an import: {error!r}", answer.status) from error


def _read_page(answer: Answer) -> ImportPage:
    try:
        document = json_document(answer)
        return ImportPage([_import_info(body) for body in document["imports"]], document.get("next"))
    except (KeyError, TypeError) as error:
        raise UnexpectedAnswer(f"the answer is not a list of imports: {error!r}", answer.status) from error


def _import_info(body: Any) -> ImportInfo:
    problem, made = body["error"], body["metadata"]
    error = None
    if problem is not None:
        error = BY_CODE.get(problem["code"], ServiceError)(problem["status"], problem)
    return ImportInfo(
        body["id"], body["name"], body["url"], body["state"], body["bytes_done"], body["bytes_total"], error,
        None if made is None else tensor_info(made),
    )  # fmt: skip
