"""The tables of body formats: each carries the types that it says, and refuses the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.errors import GatherError
from app.formats.body_formats import FORMATS, JSON, TENSORS, Codec, TensorCodec
from app.tensors.dtypes import DTYPES


def carried(write: Callable[[str], object]) -> set[str]:
    """The types for which `write` raises nothing."""
    found = set()
    for name in DTYPES:
        try:
            write(name)
            found.add(name)
        except GatherError as error:
            assert error.code == "unsupported_dtype"  # noqa: PT017
    return found


@pytest.mark.parametrize("codec", FORMATS.values(), ids=lambda codec: codec.media_type.decode())
def test_an_answer_is_written_of_the_types_that_a_format_carries(codec: Codec) -> None:
    assert carried(lambda name: codec.check_writable(DTYPES[name], "/data")) == codec.dtypes


@pytest.mark.parametrize("codec", TENSORS.values(), ids=lambda codec: codec.media_type)
def test_a_content_is_sent_in_the_types_that_a_format_carries(codec: TensorCodec) -> None:
    assert carried(lambda name: codec.write_head(DTYPES[name], (2, 3), 6 * DTYPES[name].item_size)) == codec.dtypes


def test_json_carries_every_type() -> None:
    assert FORMATS[JSON].dtypes == set(DTYPES)
