"""How a cluster cuts and places tables, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How tables are cut and placed, and how long is waited for what, in seconds."""

    ranges: int = 4
    """Into how many ranges a new version is cut."""
    replicas: int = 2
    lost_after: float = 15
    """A machine that is silent for so long has its ranges copied elsewhere."""
    drop_after: float = 5
    """How long a range that the map has no more stays, for requests that began with an older map."""
    publish_timeout: float = 30
    """A new version whose router is silent for so long is given up."""
    copies_at_once: int = 4
