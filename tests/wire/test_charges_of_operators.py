"""What requests of scatters, gradients and lookups take is charged before it is taken, and the texts of their answers.

`test_charges` has the same of gathers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pybase64
import pytest
from numpy.typing import NDArray

from app.errors import GatherError
from app.formats import body_formats
from app.formats.json.read_request import read_request
from app.formats.json.write_answer import write_answer
from app.formats.oip.infer_answer import write_answer as write_infer_answer
from app.formats.oip.infer_document import LOOKUP_MODEL, Model
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.json_text.read_elements import read_elements
from app.memory.budget import Memory
from app.operators.registry import GRADIENTS, OPERATORS
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer, TableRead
from app.tensors.lookup_call import LOOKUP_SIGNATURE
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.http.lookups import Given, as_json, as_safetensors
from tests.oip.bodies import octets
from tests.strings import packed
from tests.told_memory import ToldMemory
from tests.wire.test_charges import Account, widest

pytestmark = pytest.mark.usefixtures("compiled")

COUNT = 1000
INDICES = np.arange(COUNT)
OFFSETS = np.arange(0, COUNT, 4)
SCATTER = OPERATORS["scatter_elements"].signature
BACKWARD = GRADIENTS["gather_backward"].signature
OIP = {"int64": "INT64", "float64": "FP64", "int8": "INT8"}


class Sent(NamedTuple):
    """A request: what reads it, and the arrays that reading makes."""

    read: Callable[[Memory], Any]
    made: dict[str, NDArray[Any]]


def native(array: NDArray[Any], encoding: str) -> dict[str, Any]:
    if encoding == "base64":
        return {"dtype": array.dtype.name, "shape": array.shape, "base64": pybase64.b64encode(array.tobytes()).decode()}
    return {"dtype": array.dtype.name, "shape": array.shape, "values": array.tolist()}


def inputs_of(arrays: dict[str, NDArray[Any]], encoding: str, **parameters: Any) -> tuple[bytes, int | None]:
    """An infer request, and the size of its JSON where items follow it."""
    inputs = []
    for name, array in arrays.items():
        told = {"name": name, "datatype": OIP[array.dtype.name], "shape": array.shape}
        inputs.append(
            told
            | ({"data": array.tolist()} if encoding == "values" else {"parameters": {"binary_data_size": array.nbytes}})
        )
    text = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    if encoding == "values":
        return text, None
    return text + b"".join(map(octets, arrays.values())), len(text)


def scatter(encoding: str) -> Sent:
    made = {"data": np.zeros(COUNT), "indices": INDICES, "updates": np.ones(COUNT)}
    body = json.dumps({name: native(array, encoding) for name, array in made.items()}).encode()
    return Sent(lambda memory: read_request(body, b"", SCATTER, Limits(), memory), made)


def scatter_v2(encoding: str) -> Sent:
    """In binary the int8 before them brings all others out of their place, so that they are copied."""
    arrays: dict[str, NDArray[Any]] = {
        "data": np.zeros(3, np.int8),
        "updates": np.ones(COUNT, np.int8),
        "indices": INDICES,
    }
    body, size = inputs_of(arrays, encoding)
    model = Model("scatter_elements", SCATTER)
    made: dict[str, NDArray[Any]] = arrays if encoding == "values" else {"indices": INDICES}
    return Sent(lambda memory: read_body(body, size, model, Limits(), memory), made)


def backward(encoding: str) -> Sent:
    made = {"indices": INDICES, "grad_output": np.ones((COUNT, 2))}
    body = json.dumps({"data_shape": [9, 2]} | {name: native(array, encoding) for name, array in made.items()}).encode()
    return Sent(lambda memory: read_request(body, b"", BACKWARD, Limits(), memory), made)


FEATURES = [
    Given("a", INDICES, OFFSETS, np.ones(COUNT), "sum"),
    Given("b", INDICES),
]


def arrays_of(features: list[Given]) -> dict[str, NDArray[Any]]:
    return {f"{number}.{name}": array for number, one in enumerate(features) for name, array in one.arrays().items()}


def lookup(encoding: str) -> Sent:
    features = [
        given.fields() | {name: native(array, encoding) for name, array in given.arrays().items()} for given in FEATURES
    ]
    body = json.dumps({"features": features}).encode()
    made = arrays_of(FEATURES)
    return Sent(lambda memory: read_request(body, b"", LOOKUP_SIGNATURE, Limits(), memory), made)


def lookup_v2(encoding: str) -> Sent:
    document = json.dumps({"features": [given.fields() for given in FEATURES]})
    made = arrays_of(FEATURES)
    first = {} if encoding == "values" else {"0.indices": made["0.indices"]}
    body, size = inputs_of(first | made, encoding, lookup=document)
    return Sent(
        lambda memory: read_body(body, size, LOOKUP_MODEL, Limits(), memory), made if encoding == "values" else {}
    )


MAKERS = (scatter, scatter_v2, backward, lookup, lookup_v2)
SENT = [pytest.param(make, form, id=f"{make.__name__}-{form}") for make in MAKERS for form in ("values", "base64")]


@pytest.mark.parametrize(("make", "encoding"), SENT)
def test_each_array_is_told_with_its_bytes_or_a_little_more(make: Callable[[str], Sent], encoding: str) -> None:
    sent, charges = make(encoding), list[int]()
    sent.read(ToldMemory(charges.append))
    left = sorted(charges)
    for name, array in sent.made.items():
        found = next((one for one in left if array.nbytes <= one <= array.nbytes + 3), None)
        assert found is not None, (name, array.nbytes, charges)
        left.remove(found)


@pytest.mark.parametrize(("make", "encoding"), [one for one in SENT if one.values[1] == "values"])
def test_what_the_charge_raises_is_raised_before_anything_is_made(
    make: Callable[[str], Sent], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    def made(*_: object) -> None:
        raise AssertionError("made although refused")

    sent = make(encoding)
    monkeypatch.setattr(read_elements, "run", made)
    with pytest.raises(GatherError, match="no room for"):
        sent.read(ToldMemory(full))


def out_of_place(names: tuple[str, str], metadata: dict[str, str]) -> bytes:
    """A safetensors body of two int64 tensors behind a byte, which brings them out of their place."""
    size = 8 * COUNT
    entries = {
        name: {"dtype": "I64", "shape": [COUNT], "data_offsets": [1 + number * size, 1 + (number + 1) * size]}
        for number, name in enumerate(names)
    }
    # A tensor of no feature is refused, so that the byte belongs to the first: nothing may lie between tensors.
    first = {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps({"__metadata__": metadata, "data": first, **entries}).encode()
    return len(text).to_bytes(8, "little") + text + bytes(1 + 2 * size)


def test_tensors_of_safetensors_that_are_not_aligned_are_charged_with_their_copies() -> None:
    body = out_of_place(("indices", "updates"), {})
    charges: list[int] = []
    read_safetensors(body, b"", SCATTER, Limits(), ToldMemory(charges.append))
    assert charges[-2:] == [8 * COUNT, 8 * COUNT]


def saved_out_of_place(features: list[Given]) -> Iterator[bytes]:
    """The body with so many spaces in its header that items lie at each place of 8."""
    body = as_safetensors(features)
    size = int.from_bytes(body[:8], "little")
    for shift in range(8):
        header = body[8 : 8 + size] + b" " * shift
        yield len(header).to_bytes(8, "little") + header + body[8 + size :]


def test_arrays_of_a_lookup_that_are_not_aligned_are_charged_with_their_copies() -> None:
    wanted = sorted(array.nbytes for array in arrays_of(FEATURES).values())
    charged = []
    for body in saved_out_of_place(FEATURES):
        charges: list[int] = []
        read_safetensors(body, b"", LOOKUP_SIGNATURE, Limits(), ToldMemory(charges.append))
        charged.append(sorted(one for one in charges if one in wanted))
    assert charged.count(wanted) == 7
    assert charged.count([]) == 1


def test_arrays_of_a_gradient_that_are_not_aligned_are_charged_with_their_copies() -> None:
    charged = []
    for shift in range(8):
        entries = {
            "indices": {"dtype": "I64", "shape": [COUNT], "data_offsets": [0, 8 * COUNT]},
            "grad_output": {"dtype": "F64", "shape": [COUNT], "data_offsets": [8 * COUNT, 16 * COUNT]},
        }
        text = json.dumps(entries).encode() + b" " * shift
        body = len(text).to_bytes(8, "little") + text + bytes(16 * COUNT)
        charges: list[int] = []
        read_safetensors(body, b"data_shape=9", BACKWARD, Limits(), ToldMemory(charges.append))
        charged.append(charges.count(8 * COUNT))
    assert sorted(charged) == [0] + [2] * 7


def check_text(write: Callable[[Any], Any], least: int) -> None:
    """What `write` makes is charged, before it is made, and no more than it is."""
    account = Account()
    found = write(account)
    pieces = [found] if isinstance(found, bytes) else found
    size = sum(map(len, pieces))
    assert size >= least
    assert size - 500 <= account.held <= size + 200
    assert account.most <= 2 * account.held + 3_000_000

    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    account.charge = full  # type: ignore[method-assign]
    with pytest.raises(GatherError, match="no room for"):
        write(account)


@pytest.mark.parametrize("encoding", ["values", "base64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_the_text_of_a_gradient_is_charged_before_it_is_made(dtype: str, encoding: Any) -> None:
    known = DTYPES[dtype]
    values = Tensor(known, (30_000,), widest(dtype, 30_000).astype(known.numpy))
    answer = Answer(
        {"grad_indices": Tensor(DTYPES["int64"], (30_000,), np.arange(30_000)), "grad_values": values}, "onnx-13"
    )
    check_text(lambda memory: write_answer(answer, encoding, memory), 30_000)


@pytest.mark.parametrize("form", ["values", "base64", "v2", "v2 binary"])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "string"])
def test_the_text_of_a_lookup_s_answer_is_charged_before_it_is_made(dtype: str, form: Any) -> None:
    known = DTYPES[dtype]
    if dtype == "string":
        output: Tensor = packed(["plain", "\0" * 30, "é" * 9] * 10_000)
    else:
        output = Tensor(known, (30_000,), widest(dtype, 30_000).astype(known.numpy))
    answer = Answer(
        {"0.output": output, "1.output": output}, "", tables=[TableRead("a", "e", 1), TableRead("b", "f", 2)]
    )
    if form in ("values", "base64"):
        check_text(lambda memory: write_answer(answer, form, memory), 60_000)
        return
    text, _ = inputs_of(
        {"0.indices": INDICES, "1.indices": INDICES},
        "values",
        lookup='{"features":[{"tensor":"a"},{"tensor":"b"}],"concat":false}',
        binary_data_output=form == "v2 binary",
    )
    request = read_body(text, None, LOOKUP_MODEL, Limits())
    if form == "v2 binary" and dtype != "string":  # the items as they are: no copy is made
        account = Account()
        write_infer_answer(answer, LOOKUP_MODEL, request, account)
        assert account.held <= 200
        return
    check_text(lambda memory: write_infer_answer(answer, LOOKUP_MODEL, request, memory)[0], 60_000)


def test_binary_answers_are_the_outputs_and_not_copied() -> None:
    output = Tensor(DTYPES["float32"], (COUNT,), np.zeros(COUNT, np.float32))
    account = Account()
    media_type = body_formats.SAFETENSORS
    joined, gradient = (
        Answer({"output": output}, "", tables=[TableRead("a", "e", 1)]),
        Answer({"grad_data": output}, "onnx-13"),
    )
    written: list[Any] = [
        body_formats.FORMATS[media_type].write(joined, "values", account),
        body_formats.FORMATS[media_type].write(gradient, "values", account),
    ]
    for pieces in written:
        assert np.shares_memory(np.frombuffer(pieces[-1], np.uint8), output.array)
    assert account.held == 0


@pytest.mark.parametrize("shape", [[COUNT], None])
def test_where_no_shape_is_given_the_commas_tell(shape: list[int] | None) -> None:
    document = as_json([Given("a", INDICES)])
    if shape is None:
        del document["features"][0]["indices"]["shape"]
    charges: list[int] = []
    read_request(json.dumps(document).encode(), b"", LOOKUP_SIGNATURE, Limits(), ToldMemory(charges.append))
    assert charges[-1] == 8 * COUNT
    assert max(accumulate(charges)) == sum(charges)
