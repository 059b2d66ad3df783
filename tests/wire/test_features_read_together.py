"""Arrays of a lookup that are alike are read in one call: each feature is as it is in a request of its own."""

from __future__ import annotations

from dataclasses import fields, replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from app.errors import GatherError
from app.tensors.lookup_call import Feature
from app.tensors.shape_limits import Limits
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from app.wire.json.lookup_messages import read_lookup
from app.wire.json.lossless_json import Number, integer
from tests.conftest import samples

pytestmark = pytest.mark.usefixtures("every_codec")

RIGHT = {
    "a list": '"dtype":"int64","shape":[1],"values":[3]',
    "a list without a shape": '"dtype":"int64","values":[3]',
    "two items": '"dtype":"int64","values":[ 3 , 4 ]',
    "no item": '"dtype":"int64","values":[]',
    "no item, and spaces": '"dtype":"int64","values":[ \n]',
    "a scalar": '"dtype":"int64","values":3',
    "two lists": '"dtype":"int64","values":[[3],[4]]',
    "two empty lists": '"dtype":"int64","values":[[],[]]',
    "a flat list of two dimensions": '"dtype":"int64","shape":[1,2],"values":[3,4]',
    "nested of two dimensions": '"dtype":"int64","shape":[1,2],"values":[[3,4]]',
    "another type": '"dtype":"uint8","values":[3]',
    "floats": '"dtype":"float32","values":[0.5,"NaN"]',
    "a scalar text": '"dtype":"float64","values":"-Infinity"',
    "complex": '"dtype":"complex64","values":[[1,2]]',
    "bools": '"dtype":"bool","values":[true]',
    "strings": '"dtype":"string","values":["a,b","]"]',
    "strings with the same commas": '"dtype":"string","values":["a","","c"]',
    "one string with the same commas": '"dtype":"string","values":["a,,c"]',
    "a string with an escape": r'"dtype":"string","values":["\"[,"]',
    "base64": '"dtype":"int32","shape":[1],"base64":"AQAAAA=="',
    "base64 with an escape": r'"dtype":"int32","shape":[1],"base64":"AQAAA\u0041=="',
    "base64 of bools": '"dtype":"bool","shape":[2],"base64":"AAE="',
    "a long list": f'"dtype":"int64","values":[{",".join(["3"] * 300)}]',
}
WRONG = {
    "a fraction": '"dtype":"int64","shape":[1],"values":[0.5]',
    "a fraction without a shape": '"dtype":"int64","values":[0.5]',
    "an item too many": '"dtype":"int64","shape":[1],"values":[3,4]',
    "uneven lists": '"dtype":"int64","values":[[3],[4,5]]',
    "an object": '"dtype":"int64","values":[{"a":[1,2]}]',
    "a list in a flat one": '"dtype":"int64","values":[3,[4]]',
    "bytes too few": '"dtype":"int32","shape":[1],"base64":"AQAA"',
    "no bool": '"dtype":"bool","shape":[2],"base64":"AAI="',
}


def body(arrays: list[str]) -> bytes:
    return f'{{"features":[{",".join(f"""{{"tensor":"t","indices":{{{one}}}}}""" for one in arrays)}]}}'.encode()


def read(arrays: list[str]) -> list[Feature]:
    return list(read_lookup(body(arrays), b"", Limits())[0].features)


def refusal(arrays: list[str]) -> GatherError:
    with pytest.raises(GatherError) as refused:
        read(arrays)
    return refused.value


def items(tensor: Tensor) -> list[bytes]:
    if isinstance(tensor, PackedStrings):
        octets = tensor.octets.tobytes()
        return [octets[at + 4 : at + 4 + int.from_bytes(octets[at : at + 4], "little")] for at in tensor.array.tolist()]
    assert tensor.array.flags.c_contiguous
    assert tensor.array.flags.aligned
    return [item.tobytes() for item in tensor.array]


def check_equal(one: Feature, alone: Feature, position: int) -> None:
    """That a feature is what it is alone, but for where it stands."""
    pointers = ("pointer", "shape_pointer", "dtype_pointer")
    for name in pointers:
        expected = getattr(alone.indices, name).replace("/features/0/", f"/features/{position}/")
        assert getattr(one.indices, name) == expected
    same = [field.name for field in fields(Tensor) if field.name not in (*pointers, "array")]
    assert [getattr(one.indices, name) for name in same] == [getattr(alone.indices, name) for name in same]
    assert items(one.indices) == items(alone.indices)
    empty = Tensor(alone.indices.dtype, (0,), np.empty(0))
    assert replace(one, indices=empty, pointer="") == replace(alone, indices=empty, pointer="")
    assert one.pointer == f"/features/{position}"


@pytest.mark.parametrize("seed", range(3))
def test_features_that_are_alike_are_each_as_alone(seed: int) -> None:
    random = Random(seed)
    for _ in range(samples(20)):
        kinds = random.sample(list(RIGHT), random.choice([1, 2, len(RIGHT)]))
        arrays = [RIGHT[random.choice(kinds)] for _ in range(40)]
        alone = {array: read([array])[0] for array in set(arrays)}
        for position, (feature, array) in enumerate(zip(read(arrays), arrays, strict=True)):
            check_equal(feature, alone[array], position)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_one_among_many_is_named_as_alone(wrong: str) -> None:
    alone = refusal([WRONG[wrong]])
    for right in ("a list", "a list without a shape", "two lists", "base64"):
        for position in (0, 3, 9):
            arrays = [RIGHT[right]] * 10
            arrays[position] = WRONG[wrong]
            error = refusal(arrays)
            assert (error.code, error.detail) == (
                alone.code,
                alone.detail.replace("features/0/", f"features/{position}/"),
            )
            assert [place.pointer for place in error.places] == [
                place.pointer.replace("/features/0/", f"/features/{position}/") for place in alone.places
            ]


def test_counts_come_before_values_and_the_first_feature_before_the_next() -> None:
    fraction, many = WRONG["a fraction"], WRONG["an item too many"]
    right = RIGHT["a list"]
    assert refusal([right, fraction, right, many, fraction, many]).places[0].pointer == "/features/3/indices/values"
    assert refusal([right, fraction, right, fraction]).places[0].pointer == "/features/1/indices/values/0"
    bytes_few, uneven = WRONG["bytes too few"], WRONG["uneven lists"]
    assert refusal([right, uneven, bytes_few]).places[0].pointer == "/features/1/indices/values"
    assert refusal([right, bytes_few, uneven]).places[0].pointer == "/features/1/indices/base64"


def test_a_short_number_with_a_fraction_or_an_exponent_is_the_integer_that_it_is() -> None:
    random = Random(5)
    texts = ["1.0", "1e0", "10e-1", "-3.00", "0.0", "-0e9", "1e14", "1e15", "1e300", "1e-400", "0.99999999999999"]
    for _ in range(samples(4000)):
        digits = str(random.randrange(10 ** random.randrange(1, 9)))
        point = random.randrange(1, len(digits) + 1)
        texts.append(f"{digits[:point]}.{digits[point:] or '0'}e{random.randrange(-9, 20)}")
    for text in texts:
        exact = Fraction(text)
        assert integer(Number(text)) == (int(exact) if exact.denominator == 1 else None), text
