"""The catalogue after a change, as a database that nobody else changes would have it."""

from __future__ import annotations

from app.cluster.catalogue.records import Catalogue, Change, Record, to_json, updated

Records = dict[str, Record | None]


def applied(catalogue: Catalogue, change: Change | None) -> Catalogue:
    """The catalogue one revision later, by the bytes of the records; the same one for no change."""
    if change is None:
        return catalogue
    revision = catalogue.revision + 1
    written = {key: None if one is None else (to_json(one), revision) for key, one in change.puts.items()}
    return updated(catalogue, revision, written)


def stands(catalogue: Catalogue, change: Change, now: Catalogue) -> bool:
    """Whether a change that was judged by `catalogue` is made in `now`, by etcd's rules."""
    exact = {*change.puts, *change.unchanged}
    return all(catalogue.revisions.get(key, 0) == now.revisions.get(key, 0) for key in exact) and all(
        revision <= catalogue.revision
        for key, revision in now.revisions.items()
        if key.startswith(change.no_newer or ("/",))
    )
