"""What a shard that asks another one is told if it cannot even ask."""

from __future__ import annotations

from typing import NoReturn

import pytest

from app.cluster.catalogue.records import Catalogue, Node
from app.cluster.shard.peers import PeerFailed, Peers

CATALOGUE = Catalogue(nodes={"b": Node("127.0.0.1:1", 1, "", "")})


def unreadable() -> NoReturn:
    raise FileNotFoundError("ca.pem")


def test_authorities_or_a_key_that_cannot_be_read_are_no_error_of_the_store() -> None:
    """A scatter that is being shipped would be answered insufficient_storage, which says that it is not made."""
    without_key = Peers(lambda: CATALOGUE, unreadable, lambda: None)
    without_authorities = Peers(lambda: CATALOGUE, lambda: None, unreadable)
    for peers in (without_key, without_authorities):
        with pytest.raises(PeerFailed, match=r"ca\.pem"):
            peers.ask("b", "GET", "/shard/ranges/t")
