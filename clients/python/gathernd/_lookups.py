"""Lookups in many resident tensors in one request: the features, the request, and the parser of its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ._answers import SAFETENSORS, Decode, json_document, read_tensor, with_info
from ._array_bytes import EncodedTensor, decode, encode
from ._arrays_of_others import as_array, as_indices, as_type, decode_for_torch, encode_value, has_no_type
from ._endpoints import JSON, SAFETENSORS_OR_JSON, OutOfBounds, check_name, dtype_name, json_tensor, json_value
from ._key_arrays import key_array, request_keys
from ._keys import FOUND, Missing, key_fields, row_name
from ._messages import Answer, Request
from ._safetensors import read_metadata, read_tensors, write_safetensors
from ._selection import NamedTensor
from .errors import UnexpectedAnswer

Pooling = Literal["none", "sum", "mean", "max"]
_LOOKUP: Final = "lookup"
_EXAMPLE: Final = "[('items', [3, 1])]"
_AT_LEAST: Final = "tensor and indices or keys are needed"


@dataclass(frozen=True, slots=True)
class Feature:
    """Selects rows of the resident tensor `tensor`: the rows at `indices`, or one pooled row per bag of indices.

    Bags require `pooling` and either `offsets`, the position at which each bag begins, or `lengths`, the size of each
    bag (as in TorchRec's KeyedJaggedTensor). The last bag ends at the end of `indices`; with `include_last_offset`, as
    in PyTorch, `offsets` has one more entry for that end. `weights`, for pooling "sum", holds one weight per index in
    the tensor's type; a list is converted to that type.

    For a table with keys, `keys` (integers or strings) can replace `indices`. `missing`, `missing_row` and `found` work
    as in `Client.gather`.

    Entries equal to `padding_index` are removed from their bags. An empty bag returns the row `default_index`, or zeros
    by default. Both are positions or, for a feature with keys, a mapping such as {"key": 7}.
    """

    tensor: str | NamedTensor
    indices: Any = None
    offsets: Any = None
    lengths: Any = None
    weights: Any = None
    pooling: Pooling | None = None
    include_last_offset: bool = False
    keys: Any = None
    missing: Missing | None = None
    missing_row: Any = None
    found: bool = False
    padding_index: Any = None
    default_index: Any = None


_FIELDS: Final = tuple(field.name for field in fields(Feature))


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The result of a lookup with its details, as returned with `with_info=True`.

    output      the array, or without `concat` a list with one array per feature
    etags       for each feature, the ETag of the data that was read
    request_id  ID of the request in the service's log
    timings     seconds that the service spent in each of its stages
    replaced    number of indices that were out of bounds and replaced; None if such indices are an error
    versions    for each feature, the version number that was read
    missing     number of keys that the tables do not have; None without keys
    found       for each feature with `found=True`, one bool per key: whether the table has it; None for other features
    """

    output: Any
    etags: Sequence[str]
    request_id: str
    timings: Mapping[str, float]
    replaced: int | None = None
    versions: Sequence[int] = ()
    missing: int | None = None
    found: Sequence[Any] = ()


def features_of(
    values: Any, lengths: Any, tensors: Sequence[str], weights: Any = None, pooling: Pooling = "sum"
) -> list[Feature]:
    """Convert a KeyedJaggedTensor to features, one per tensor in `tensors`.

    `values` holds the values of all keys in order, and `lengths` the bag sizes of the first key, then of the second,
    and so on; every key has the same number of bags. `weights` holds one weight per value. Every bag is pooled by
    `pooling`. Raises ValueError if the lengths do not match, and TypeError if they are not integers.
    """
    sizes = _sizes(lengths)
    flat, each = as_indices(values, widen=False).reshape(-1), None if weights is None else as_array(weights).reshape(-1)
    if not tensors or sizes.size % len(tensors):
        raise ValueError(f"{sizes.size} lengths cannot be those of {len(tensors)} tensors with equally many bags")
    if (sizes < 0).any() or int(sizes.sum()) != flat.size or (each is not None and each.size != flat.size):
        raise ValueError(f"the lengths add up to {int(sizes.sum())}, and {flat.size} values are given")
    bags = sizes.size // len(tensors)
    found, begin = [], 0
    for number, tensor in enumerate(tensors):
        own = sizes[number * bags : (number + 1) * bags]
        end = begin + int(own.sum())
        part = None if each is None else each[begin:end]
        if part is not None and has_no_type(weights):
            part = part.tolist()
        found.append(Feature(tensor, flat[begin:end], lengths=own, weights=part, pooling=pooling))
        begin = end
    return found


def as_features(given: Iterable[Feature | tuple[Any, ...] | Mapping[str, Any]]) -> list[Feature]:
    """Convert the features of a lookup, each a `Feature` or its fields in a tuple or dict.

    Raises TypeError for any other form, and ValueError for bags without pooling.
    """
    if isinstance(given, str | bytes | Mapping | Feature) or not isinstance(given, Iterable):
        raise TypeError(f"the features of a lookup are a list, as in {_EXAMPLE}, not a {type(given).__name__}")
    return [_as_feature(number, one) for number, one in enumerate(given)]


def _as_feature(number: int, given: Any) -> Feature:
    made = given
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in _FIELDS]
        if unknown or "tensor" not in given or given.keys().isdisjoint({"indices", "keys"}):
            raise TypeError(f"feature {number} has the fields {list(given)}: take {', '.join(_FIELDS)}; {_AT_LEAST}")
        made = Feature(**given)
    elif isinstance(given, tuple | list):
        if not 2 <= len(given) <= len(_FIELDS):
            raise TypeError(f"feature {number} has {len(given)} fields: take {', '.join(_FIELDS)}; {_AT_LEAST}")
        made = Feature(*given)
    if not isinstance(made, Feature):
        raise TypeError(f"feature {number} is a Feature or its fields in a tuple or dict, not a {type(given).__name__}")
    tensor: Any = made.tensor
    if not isinstance(tensor, str | NamedTensor):
        kind = type(tensor).__name__
        raise TypeError(f"feature {number} begins with the name of its tensor, a str, not with a {kind}: {_EXAMPLE}")
    if (made.indices is None) == (made.keys is None):
        raise TypeError(f"feature {number} takes indices, positions of rows, or keys, and one of them")
    bags = "offsets" if made.offsets is not None else "lengths" if made.lengths is not None else None
    if bags is not None and made.pooling in (None, "none"):
        raise ValueError(f"feature {number} has {bags} and no pooling: give pooling='sum', 'mean' or 'max'")
    if made.include_last_offset and made.offsets is None:
        raise ValueError(f"feature {number} has include_last_offset and no offsets")
    return made


def without_weight_type(features: Iterable[Feature]) -> set[str]:
    """Return the resident tensors of the features whose weights are a list, which has no element type of its own."""
    listed = (one for one in features if one.weights is not None and has_no_type(one.weights))
    return {_name(one) for one in listed}


def with_weight_types(features: Iterable[Feature], dtypes: Mapping[str, str]) -> list[Feature]:
    """Convert lists of weights to arrays of their tensor's type; `dtypes` maps tensor names to types.

    Raises ValueError if the type cannot hold a weight.
    """
    return [
        replace(one, weights=as_type(one.weights, dtypes[_name(one)]))
        if one.weights is not None and has_no_type(one.weights)
        else one
        for one in features
    ]


def without_key_type(features: Iterable[Feature]) -> dict[str, list[int]]:
    """Find the features whose keys are a list, which has no type of its own. Returns their indices by tensor name."""
    found: dict[str, list[int]] = {}
    for number, one in enumerate(features):
        if one.keys is not None and has_no_type(one.keys):
            found.setdefault(_name(one), []).append(number)
    return found


def lookup(
    features: Sequence[Feature],
    concat: bool,
    out_of_bounds: OutOfBounds,
    fill_value: Any,
    output_dtype: Any,
    info: bool,
    as_torch: bool,
) -> Request[Any]:
    """Build the request for a lookup, in safetensors if possible, else in JSON.

    The result is an array or, without `concat`, a list of arrays. With `info`, or if a feature has `found`, it is a
    LookupResult. Raises TypeError if indices, offsets or lengths are not integers, and ValueError if a feature has both
    offsets and lengths.
    """
    named, arrays = [], []
    for feature in features:
        name = _name(feature)
        check_name(name)
        arrays.append(_arrays(feature))
        settings: dict[str, Any] = {"tensor": name, **key_fields(feature.missing, feature.missing_row, feature.found)}
        if feature.pooling not in (None, "none"):
            settings["pooling"] = feature.pooling
        if feature.include_last_offset:
            settings["include_last_offset"] = True
        bag_rows = {"padding_index": feature.padding_index, "default_index": feature.default_index}
        settings |= {name: row_name(row) for name, row in bag_rows.items() if row is not None}
        named.append(settings)
    asked: dict[str, Any] = {"concat": concat, "output_encoding": "base64"}
    if out_of_bounds != "error":
        asked["out_of_bounds"] = out_of_bounds
    if fill_value is not None:
        asked["fill_value"] = json_value(fill_value)
    if output_dtype is not None:
        asked["output_dtype"] = dtype_name(output_dtype)
    make: Decode = decode_for_torch if as_torch else decode

    def read(answer: Answer) -> Any:
        outputs, known, told = _read(answer, make, concat, len(named))
        output = outputs[0] if concat else outputs
        if not info and not any(feature.found for feature in features):
            return output
        etags = [str(one["data_etag"]) for one in told["features"]]
        beside = with_info(answer, output, None)
        versions = [one.get("version", 1) for one in told["features"]]
        return LookupResult(
            output, etags, beside.request_id, beside.timings, told.get("replaced"), versions,
            told.get("missing"), known,
        )  # fmt: skip

    # safetensors has no strings, so string keys of a rank other than 1 are sent as JSON.
    if all(tensor.element_type.safetensors for own in arrays for tensor in own.values()):
        tensors = {f"{number}.{array}": one for number, own in enumerate(arrays) for array, one in own.items()}
        text = json.dumps({"features": named, **asked}, separators=(",", ":"))
        body, kind = write_safetensors(tensors, {_LOOKUP: text}), SAFETENSORS
    else:
        for settings, feature in zip(named, features, strict=True):
            settings |= {array: json_tensor(one) for array, one in _arrays(feature, binary=False).items()}
        body, kind = [json.dumps({"features": named, **asked}).encode()], JSON
    headers = {"content-type": kind, "accept": SAFETENSORS_OR_JSON}
    return Request("POST", f"/{_LOOKUP}", read, {}, headers, body)


def _arrays(feature: Feature, *, binary: bool = True) -> dict[str, EncodedTensor]:
    """Return the arrays of a feature by their names in a request."""
    indices, offsets = _indices(feature)
    arrays = {"indices": encode(indices)} if feature.keys is None else request_keys(indices, binary=binary)
    if offsets is not None:
        arrays["offsets"] = encode(offsets)
    if feature.weights is not None:
        arrays["weights"] = encode_value(feature.weights)
    return arrays


def _name(feature: Feature) -> str:
    return feature.tensor.name if isinstance(feature.tensor, NamedTensor) else feature.tensor


def _sizes(lengths: Any) -> NDArray[Any]:
    """Return the lengths of bags as an array of rank 1. Raises TypeError if they are not integers."""
    return _as_integers(as_indices(lengths, widen=True), "the lengths of bags").reshape(-1)


def _as_integers(array: NDArray[Any], what: str) -> NDArray[Any]:
    """Return the array as int32 or int64; uint64 becomes int64. Raises TypeError for other types and larger values."""
    if array.dtype == np.uint64 and not (array > np.iinfo(np.int64).max).any():
        return array.astype(np.int64)
    if array.dtype not in (np.int32, np.int64):
        raise TypeError(f"{what} are integers of at most int64, not {array.dtype}")
    return array


def _indices(feature: Feature) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return indices and offsets, both int32 or both int64. With keys, return the keys and int64 offsets."""
    if feature.offsets is not None and feature.lengths is not None:
        raise ValueError("a feature has offsets or lengths, not both")
    indices = as_indices(feature.indices, widen=False) if feature.keys is None else key_array(feature.keys)
    if feature.keys is None and indices.dtype not in (np.int32, np.int64):
        indices = _as_integers(as_indices(indices, widen=True), "the indices of a feature")
    if feature.lengths is not None:
        sizes = _sizes(feature.lengths)
        if int(sizes.sum()) != indices.size:
            raise ValueError(f"the lengths add up to {int(sizes.sum())}, and there are {indices.size} indices")
        own = indices.dtype if feature.keys is None else np.int64
        return indices, (np.cumsum(sizes) - sizes).astype(own)
    if feature.offsets is None:
        return indices, None
    offsets = _as_integers(as_indices(feature.offsets, widen=True), "the offsets of bags")
    if feature.keys is not None:
        return indices, offsets.astype(np.int64)
    if indices.dtype != offsets.dtype:
        indices = indices.astype(np.int64)
    return indices, offsets


def _read(answer: Answer, make: Decode, concat: bool, features: int) -> tuple[list[Any], list[Any], Any]:
    """Return the outputs, the `found` array of each feature (None without `found`), and the answer's metadata."""
    names = ["output"] if concat else [f"{number}.output" for number in range(features)]
    try:
        if answer.headers.get("content-type", "").startswith(SAFETENSORS):
            told = json.loads(read_metadata(answer.body)[_LOOKUP])
            tensors = read_tensors(answer.body)
            outputs = [tensors[name] for name in names]
            known = [tensors.get(f"{number}.{FOUND}") for number in range(features)]
        else:
            told = json_document(answer)
            outputs = [read_tensor(one) for one in ([told["output"]] if concat else told["outputs"])]
            known = [read_tensor(one[FOUND]) if FOUND in one else None for one in told["features"]]
        return [make(*one) for one in outputs], [None if one is None else make(*one) for one in known], told
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnexpectedAnswer(f"the answer is not that of a lookup: {error!r}", answer.status) from error
