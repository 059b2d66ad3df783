"""Random items of each element type as NumPy arrays, and when two arrays are the same."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.http.forms import COMPLEX, FLOAT8, FLOATS, INTEGERS, TYPES

Array = NDArray[Any]
Rng = np.random.Generator
NUMPY: dict[str, np.dtype[Any]] = {
    name: np.dtype({"string": object}.get(name, getattr(ml_dtypes, name, name))) for name in (*TYPES, *FLOAT8)
}
TEXTS = ("", "a", "ä", "日本", "🙂", '"', "\\", "\x00", "\n", "a" * 40, "\u2028", "\U0010ffff")
ODD = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 6e4, 6e-8, 1e-40, 3e38)
EXTREMES = (2**63 - 1, -(2**63), 2**62, -(2**62), 2**32, -(2**32))


def choose(rng: Rng, choices: Any) -> Any:
    """One of a sequence, as it is (NumPy's own choice makes scalars of NumPy's)."""
    return choices[rng.integers(len(choices))]


def name_of(array: Array) -> str:
    """The service's name of an array's element type."""
    return "string" if array.dtype == object else array.dtype.name


def items(rng: Rng, dtype: str, shape: Any) -> Array:
    """Random items: of integers the whole range or few small ones, of floats any bits, or numbers of ordinary sizes."""
    shape = tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    kind = NUMPY[dtype]
    if dtype == "string":
        made = np.empty(count, object)
        made[:] = [choose(rng, TEXTS) for _ in range(count)]
        return made.reshape(shape)
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), np.bool_)
    if dtype in INTEGERS:
        if rng.random() < 0.5:
            return np.frombuffer(rng.bytes(count * kind.itemsize), kind).reshape(shape).copy()
        return np.asarray(rng.integers(0 if dtype.startswith("u") else -9, 9, shape).astype(kind))
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return items(rng, part, (*shape, 2)).reshape(-1).view(kind).reshape(shape)
    return _floats(rng, dtype, count).reshape(shape)


def _floats(rng: Rng, dtype: str, count: int) -> Array:
    kind = NUMPY[dtype]
    with np.errstate(all="ignore"):
        if rng.random() < 0.2:
            return np.frombuffer(rng.bytes(count * kind.itemsize), kind).copy()
        made: Array = (rng.standard_normal(count) * 2.0 ** rng.integers(-6, 6, count)).astype(kind)
        if count and rng.random() < 0.3:
            made[rng.integers(0, count, max(count // 4, 1))] = np.array(choose(rng, ODD), np.float64).astype(kind)
    return made


def indices_around(rng: Rng, dtype: str, sizes: Array, *, wraps: bool, bad: float) -> Array:
    """An index for each of `sizes`, valid where there is a valid one, but for the share `bad` of bad ones."""
    held = np.iinfo(dtype)
    low = -sizes if wraps and held.min < 0 else np.zeros_like(sizes)
    good = np.where(sizes > 0, rng.integers(low, np.maximum(sizes, 1)), 0)
    far = rng.choice(EXTREMES, sizes.shape)
    near = sizes * rng.choice([1, -1, 2, -3], sizes.shape) + rng.choice([0, 1, -1], sizes.shape)
    wrong = np.where(rng.random(sizes.shape) < 0.3, far, near)
    chosen = np.where(rng.random(sizes.shape) < bad, wrong, good)
    # A type that cannot hold a bad index gets the nearest one that it holds; uint64's own largest come in too.
    made = np.clip(chosen, held.min, min(held.max, 2**63 - 1)).astype(dtype)
    if dtype == "uint64" and bad:
        made = np.where(rng.random(sizes.shape) < bad / 4, np.uint64(2**64 - 1), made)
    return np.asarray(made, dtype)


def same(found: Array, wanted: Array) -> bool:
    """Whether type, shape and bits are equal, but for the payload of a NaN."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if wanted.dtype == object:
        return bool((found == wanted).all())
    one, other = np.ascontiguousarray(found).reshape(-1), np.ascontiguousarray(wanted).reshape(-1)
    if one.tobytes() == other.tobytes():
        return True
    if name_of(wanted) in COMPLEX:
        part = "float32" if wanted.dtype.itemsize == 8 else "float64"
        one, other = one.view(part), other.view(part)
    elif name_of(wanted) not in (*FLOATS, *FLOAT8):
        return False
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        nans, found_nans = np.isnan(other), np.isnan(one)
    return bool((found_nans == nans).all()) and one[~nans].tobytes() == other[~nans].tobytes()
