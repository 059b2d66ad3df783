"""Versions and aliases through both clients and the commands, against a running server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gathernd import Alias, Feature, errors
from tests.client.conftest import done
from tests.for_each import for_each

_numbers = itertools.count()
Run = Callable[..., Any]


def table(number: int) -> Any:
    return np.full((3, 2), number, np.float32)


@pytest.fixture
def name(service: Any) -> Iterator[str]:
    """A name with versions 1 to 3, each full of its number; it is removed, with its aliases."""
    made = f"v{next(_numbers)}"
    for number in (1, 2, 3):
        service.put(made, table(number), keep=3)
    yield made
    for alias in list(service.aliases()):
        if alias.name == made:
            service.delete_alias(alias.alias)
    if service.exists(made):
        service.delete(made)


def test_each_put_is_the_next_version_and_keep_says_how_many_stay(service: Any, name: str) -> None:
    info = service.metadata(name)
    assert (info.version, info.versions) == (3, (1, 2, 3))
    assert service.metadata(f"{name}@2").version == 2
    assert service.metadata(name).note is None
    assert service.put(name, table(4), keep=2, note="run 4").versions == (3, 4)
    assert service.metadata(name).note == "run 4"
    assert [one.version for one in service.tensors() if one.name == name] == [4]


def test_every_method_takes_a_version_and_says_which_it_read(service: Any, name: str) -> None:
    service.put_alias(f"live-{name}", f"{name}@2")
    for reference, number in ((name, 3), (f"{name}@1", 1), (f"live-{name}", 2)):
        assert service.get(reference).tolist() == table(number).tolist()
        assert service.get(reference, with_info=True).version == number
        found = service.gather(reference, [0], with_info=True)
        assert (found.array.tolist(), found.version) == ([[number] * 2], number)
        scattered = service.scatternd(reference, [[0]], [[9.0, 9.0]], with_info=True)
        assert scattered.version == number
        looked_up = service.lookup([Feature(reference, [0]), Feature(name, [1])], with_info=True)
        assert list(looked_up.versions) == [number, 3]
        service.scatter(reference, [[1]], [[number * 10, number * 10]])
        assert service.gather(reference, [1]).tolist() == [[number * 10] * 2]
    assert service.gathernd([[1.0]], [[0]], with_info=True).version is None


def test_an_alias_is_made_moved_listed_and_removed(service: Any, name: str) -> None:
    made = service.put_alias("live", f"{name}@1", if_none_match="*")
    assert isinstance(made, Alias)
    assert (made.alias, made.tensor, made.name, made.version) == ("live", f"{name}@1", name, 1)
    assert service.put_alias("live", f"{name}@1") == made
    with pytest.raises(errors.PreconditionFailed):
        service.put_alias("live", f"{name}@2", if_none_match="*")
    moved = service.put_alias("live", f"{name}@2", if_match=made.etag)
    assert moved.version == 2
    assert service.alias("live") == moved
    service.put_alias("next", f"{name}@3")
    assert [one.alias for one in service.aliases(page=1)] == ["live", "next"]
    with pytest.raises(errors.PreconditionFailed):
        service.delete_alias("live", if_match=made.etag)
    service.delete_alias("live", if_match=moved.etag)
    with pytest.raises(errors.TensorNotFound):
        service.alias("live")


def test_several_aliases_move_together_or_none_does(service: Any, name: str) -> None:
    live, following = service.move_aliases({"live": f"{name}@1", "following": f"{name}@2"})[::-1]
    assert [live, following] == [service.alias("live"), service.alias("following")]
    with pytest.raises(errors.PreconditionFailed) as refused:
        service.move_aliases({"live": f"{name}@2", "following": f"{name}@3"}, if_match={"following": live.etag})
    assert [place.pointer for place in refused.value.errors] == ["/aliases/following"]
    with pytest.raises(errors.PreconditionFailed):
        service.move_aliases({"live": f"{name}@2", "following": f"{name}@3"}, if_none_match={"live": "*"})
    with pytest.raises(ValueError, match="'other'"):
        service.move_aliases({"live": f"{name}@2"}, if_match={"other": live.etag})
    assert service.alias("live") == live
    etags = {"live": live.etag, "following": following.etag}
    moved = service.move_aliases({"live": f"{name}@2", "following": f"{name}@3"}, if_match=etags)
    assert [(one.alias, one.version) for one in moved] == [("following", 3), ("live", 2)]


def test_replicas_reach_the_service(service: Any, name: str) -> None:
    assert service.metadata(name).replicas is None  # one machine has none
    with pytest.raises(errors.InvalidField):
        service.set_replicas(name, 2)
    with pytest.raises(errors.InvalidField):
        service.put(name, table(0), replicas=2)


@for_each("wrong", ["a@", "a@0", "a@01", "a@x", "a b", ".a", "", "../x", "x" * 129, "ä"])
def test_a_name_that_is_none_is_refused_before_anything_is_sent(service: Any, wrong: str) -> None:
    for call in (service.metadata, service.alias, service.delete, lambda given: service.gather(given, [0])):
        with pytest.raises(ValueError, match=r"1 to 128 .* begins with a letter or a digit"):
            call(wrong)


def test_the_commands(run: Run) -> None:
    def said(*arguments: str) -> str:
        return done(run, *arguments)[0].strip()

    for number in (1, 2):
        np.save("data.npy", table(number))
        said("tensors", "put", "nightly", "data.npy", "--keep", "2", "--note", f"run {number}")
    assert "note\trun 1" in said("tensors", "show", "nightly@1").splitlines()
    etag = said("aliases", "set", "current", "nightly@1")
    assert f"current\tnightly@1\t{said('aliases', 'ls').split(chr(9))[2]}\t{etag}" == said("aliases", "ls")
    assert "tensor\tnightly@1" in said("aliases", "show", "current").splitlines()
    assert {"version\t2", "versions\t1,2"} <= set(said("tensors", "show", "nightly").splitlines())
    (listed,) = (line.split("\t") for line in said("tensors", "ls").splitlines() if "nightly" in line)
    assert (listed[0], listed[-1]) == ("nightly", "2")
    history = [line.split("\t") for line in said("tensors", "versions", "nightly").splitlines()]
    assert [(line[0], *line[-3:]) for line in history] == [
        ("nightly", "2", "", "run 2"), ("nightly", "1", "current", "run 1"),
    ]  # fmt: skip
    said("tensors", "get", "nightly@1", "old.npy")
    said("tensors", "get", "current", "alias.npy")
    assert np.load("old.npy").tolist() == np.load("alias.npy").tolist() == table(1).tolist()
    refused = run("tensors", "rm", "nightly")
    assert refused.exit_code != 0
    assert "tensor_in_use" in refused.output
    moved = said("aliases", "set", "current", "nightly@2", "--if-match", etag)
    assert run("aliases", "set", "current", "nightly@1", "--if-match", etag).exit_code != 0
    assert run("aliases", "set", "current", "nightly@1", "--new").exit_code != 0
    both = said(
        "aliases", "move", "current=nightly@1", "next=nightly@2", "--if-match", f"current={moved}", "--new", "next"
    )
    assert [line.split("\t")[:2] for line in both.splitlines()] == [["current", "nightly@1"], ["next", "nightly@2"]]
    assert both == said("aliases", "ls")
    wrong = [
        ["current"], ["current=nightly@1", "current=nightly@2"], ["current=nightly@1", "--if-match", "next=x"],
        ["current=nightly@2", "next=nightly@1", "--new", "next"], [],
    ]  # fmt: skip
    for arguments in wrong:
        assert run("aliases", "move", *arguments).exit_code != 0
    assert said("aliases", "ls") == both
    moved = said("aliases", "set", "current", "nightly@2")
    said("aliases", "rm", "next")
    said("tensors", "rm", "nightly@1")
    said("aliases", "rm", "current", "--if-match", moved)
    said("tensors", "rm", "nightly")
