"""Convert lookups with features by key to lookups by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.errors import GatherError
from app.operators.lookup_plan import check_offsets
from app.services.edit_bags import skipped_entries
from app.services.find_rows import FoundRows, KeysToFind, check_keys, find_rows, positions_of
from app.services.lookup_arrays import Found
from app.store import Resident
from app.tensors.lookup_call import Feature, LookupCall, found_name
from app.tensors.tensor import Tensor


def by_position(call: LookupCall, residents: Sequence[Resident]) -> LookupCall:
    """Return the equivalent lookup by position, whose rows are not known yet. Raises no_keys and unsupported_dtype."""
    features = list(call.features)
    for number, (feature, resident) in enumerate(zip(call.features, residents, strict=True)):
        if feature.by_key is not None:
            check_keys(feature.indices, resident, feature.tensor, f"{feature.pointer}/tensor")
            features[number] = replace(feature, indices=positions_of(feature.indices))
    return replace(call, features=features)


def with_rows(call: LookupCall, found: Found) -> LookupCall:
    """Return the lookup with the rows that were found as its positions."""
    features = [
        one if rows is None else replace(one, indices=positions_of(one.indices, rows.rows))
        for one, rows in zip(call.features, found, strict=True)
    ]
    return replace(call, features=features)


def found_outputs(call: LookupCall, found: Found) -> dict[str, Tensor]:
    """Return the outputs that tell which keys the tables have, for the features that request them."""
    return {
        found_name(number): rows.found(feature.indices.shape)
        for number, (feature, rows) in enumerate(zip(call.features, found, strict=True))
        if rows is not None and feature.by_key is not None and feature.by_key.found
    }


def rows_found(call: LookupCall, residents: Sequence[Resident]) -> list[FoundRows | None] | GatherError:
    """Return the rows that the keys of each feature name, or the first error. Errors in offsets take precedence."""
    wanted = [_keys_to_find(feature, resident) for feature, resident in zip(call.features, residents, strict=True)]
    every = iter(find_rows([one for one in wanted if one is not None]))
    found = [None if one is None else next(every) for one in wanted]
    rows = [one for one in found if not isinstance(one, GatherError)]
    if len(rows) == len(found):
        return rows
    try:
        for feature in call.features:
            check_offsets(feature)
    except GatherError as error:
        return error
    return next(one for one in found if isinstance(one, GatherError))


def _keys_to_find(feature: Feature, resident: Resident) -> KeysToFind | None:
    """Return the keys of a feature, or None if it names rows by position."""
    if feature.by_key is None:
        return None
    assert resident.keys is not None, "this was checked"
    skipped = skipped_entries(feature, resident)
    return KeysToFind(feature.by_key, feature.indices, resident.keys, feature.tensor, skipped)
