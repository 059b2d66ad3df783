"""A case of the conformance table: a request that no format has shaped yet, and what it must be answered.

A case is written as flat JSON, with NumPy's arrays behind it. The places of an error are those of flat JSON too; each
transport translates them to the place where its own form has the fault.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tests.conformance.tables import TABLES
from tests.http.forms import FLOAT8, octets
from tests.http.rules import representable
from tests.parity.items import NUMPY, Array, name_of
from tests.parity.messages import raw

Rule = tuple[str, str | None]
"""A dialect, and the clause of its text, None where the text numbers nothing."""
MOST_AXES = 32
"""The default of GATHERND_MAX_RANK: no tensor of more axes can be uploaded."""


@dataclass(frozen=True)
class Told:
    """An array as the request tells it: `dtype` and `shape` may be ones that NumPy has no array of.

    `listed` are the flat values that JSON sends in the place of the array's own.
    """

    dtype: str
    shape: tuple[int, ...]
    array: Array
    listed: list[Any] | None = None

    @property
    def held(self) -> bool:
        """Whether the type holds all items, so that they have bytes. Items of a type that is none have any bytes."""
        return self.listed is None or all(representable(self.dtype, value) for value in self.listed if self.known)

    @property
    def counted(self) -> bool:
        """Whether there are as many items as the shape says."""
        return self.listed is None or len(self.listed) == prod(self.shape)

    @property
    def known(self) -> bool:
        """Whether there is such a type."""
        return self.dtype in NUMPY

    @property
    def content(self) -> bytes:
        """The items' bytes."""
        if self.listed is None:
            return raw(self.array)
        return octets(self.dtype, self.listed) if self.known else bytes(4 * len(self.listed))


def is_named(value: Any) -> bool:
    """Whether a parameter names a resident tensor in place of an input."""
    return isinstance(value, Mapping) and "tensor" in value


@dataclass(frozen=True)
class Error:
    """What a refusal must say. `places` have the pointers of flat JSON; None where the error has no place.

    Of an error that a text gives, `only_code` is known; of one whose turn matters, the first place too.
    """

    code: str
    places: tuple[Mapping[str, Any], ...] | None = ()
    rule: Rule | None = None
    total: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    only_code: bool = False


@dataclass(frozen=True)
class Case:
    """A request to the operator at `path`, and its answer: `outputs`, or the `error`.

    `arrays` of a lookup are named `0.indices`, `0.offsets` and so on, as safetensors names them; `features` has the
    rest of each. `resident` is the name under which `data` is uploaded instead of being sent; if there is no `data`,
    no tensor has this name.
    """

    name: str
    path: str
    arrays: Mapping[str, Told]
    parameters: Mapping[str, Any]
    features: tuple[Mapping[str, Any], ...] | None = None
    resident: str | None = None
    error: Error | None = None
    outputs: Mapping[str, Array] | None = None
    replaced: int | None = None

    @property
    def tables(self) -> Mapping[str, Array]:
        """The resident tensors that it reads."""
        names = [one.get("tensor") for one in self.features or ()] + [self.parameters.get("tensor")]
        names += [value["tensor"] for value in self.parameters.values() if is_named(value)]
        held = {name: TABLES[name] for name in names if name in TABLES}
        if self.resident is not None and "data" in self.arrays:
            held[self.resident] = self.arrays["data"].array
        return held

    @property
    def sent(self) -> Mapping[str, Told]:
        """The arrays that stand in the request."""
        return {name: told for name, told in self.arrays.items() if name != "data" or self.resident is None}


def told(given: Mapping[str, Any]) -> Told:
    """An array out of its flat JSON; its values stay as they are listed if no array of NumPy's is of that."""
    dtype, shape, listed = given["dtype"], tuple(given["shape"]), given["values"]
    held = dtype in NUMPY and all(representable(dtype, value) for value in listed)
    if not held or len(listed) != prod(shape) or any(size >= 2**32 for size in shape):
        return Told(dtype, shape, np.zeros(0, NUMPY.get(dtype, np.dtype(np.float32))), listed)
    made = strings(listed) if dtype == "string" else np.frombuffer(octets(dtype, listed), NUMPY[dtype])
    return Told(dtype, shape, made.reshape(shape))


def strings(listed: list[str]) -> Array:
    made = np.empty(len(listed), object)
    made[:] = listed
    return made


def of_array(array: Array) -> Told:
    """An array as it is."""
    return Told(name_of(array), array.shape, array)


def case(name: str, path: str, body: Mapping[str, Any], **answer: Any) -> Case:
    """A case out of the flat JSON of its request; arrays of `body` may be NumPy's."""
    arrays: dict[str, Told] = {}
    parameters: dict[str, Any] = {}
    features: tuple[Mapping[str, Any], ...] | None = None
    for member, value in body.items():
        if member == "features":
            features = tuple(_feature(number, one, arrays) for number, one in enumerate(value))
        elif _is_array(value):
            arrays[member] = value if isinstance(value, Told) else _told(value)
        else:
            parameters[member] = value
    return Case(name, path, arrays, parameters, features, **answer)


def at(pointer: str, **members: Any) -> list[dict[str, Any]]:
    """The one place of an error."""
    return [{"pointer": pointer, **members}]


def _told(value: Any) -> Told:
    return of_array(value) if isinstance(value, np.ndarray) else told(value)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | Told) or (isinstance(value, Mapping) and "dtype" in value)


def _feature(number: int, given: Mapping[str, Any], arrays: dict[str, Told]) -> Mapping[str, Any]:
    rest = {}
    for member, value in given.items():
        if _is_array(value):
            arrays[f"{number}.{member}"] = _told(value)
        else:
            rest[member] = value
    return rest


def refused(
    code: str,
    body: Mapping[str, Any],
    places: list[dict[str, Any]] | None = None,
    path: str = "/gathernd",
    rule: Rule | None = None,
    total: int | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Case:
    """A case that is refused: its name is made of the code and what is sent."""
    made = case("", path, body)
    found = tuple(places) if places else None
    shown = [f"{name} {each.dtype}{list(each.shape)}" for name, each in made.arrays.items()]
    given = [f"{name}={value!r:.40}" for name, value in made.parameters.items()]
    listed = [f"{told.array.tolist() if told.listed is None else told.listed!s:.40}" for told in made.arrays.values()]
    name = f"{path} {code}: {', '.join((*shown, *given))}: {' '.join(listed)}"
    if made.features is not None:
        name += f", features {[dict(one) for one in made.features][:3]}"
    count = total if total is not None else (len(found) if found else None)
    return replace(made, name=name, error=Error(code, found, rule, count, facts or {}))


def as_resident(one: Case) -> Case | None:
    """The case with its data resident, or with the shape of a gradient taken from a resident tensor.

    None where there is no such request: a lookup reads resident tensors alone, and data that is no tensor cannot be
    uploaded.
    """
    data = one.arrays.get("data")
    if data is not None and one.features is None:
        if data.listed is not None or len(data.shape) > MOST_AXES:
            return None
        places = None if one.error is None or one.error.places is None else tuple(map(_of_data, one.error.places))
        error = None if one.error is None else replace(one.error, places=places)
        resident = f"cf_{zlib.crc32(repr((data.dtype, data.shape)).encode() + data.content):08x}"
        return replace(one, name=f"{one.name}, resident", resident=resident, error=error)
    return None


def _of_data(place: Mapping[str, Any]) -> Mapping[str, Any]:
    """A place in data is that of its name."""
    head = place["pointer"].split("/")[1]
    return {**place, "pointer": "/data/tensor"} if head == "data" else place


def into_resident(one: Case) -> Case | None:
    """The case of `/scatternd` as a change of a resident tensor, which is ONNX's newest; None for every other case.

    `data` stays among the arrays, as what is uploaded first.
    """
    data = one.arrays.get("data")
    if one.path != "/scatternd" or data is None or data.listed is not None or len(data.shape) > MOST_AXES:
        return None
    if one.parameters.get("dialect", "onnx-18") != "onnx-18" or "device" in one.parameters:
        return None
    if data.dtype in FLOAT8:  # a resident tensor may have it, though no dialect takes it
        return None
    parameters = {name: value for name, value in one.parameters.items() if name != "dialect"}
    name = "cf_scattered"
    places = None if one.error is None or one.error.places is None else tuple(map(_of_name, one.error.places))
    error = None if one.error is None else replace(one.error, places=places)
    path = f"/tensors/{name}/scatter"
    return replace(one, name=f"{one.name}, in place", path=path, parameters=parameters, resident=name, error=error)


def _of_name(place: Mapping[str, Any]) -> Mapping[str, Any]:
    """A place in data is that of the name in the path."""
    head = place["pointer"].split("/")[1]
    return {**place, "pointer": "/name"} if head == "data" else place
