"""The tables in a cluster's catalogue, and the transactions that change them: uploads, removals and alias moves.

Each change is checked against the newest catalogue, with the same errors as on one machine, and checked again if the
catalogue has changed meanwhile. Methods that make a change block, and return once all workers of this router use
the changed catalogue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from app.catalogue.aliases import AliasMove, move_aliases, new_etag
from app.catalogue.conditions import ALWAYS, Conditions
from app.catalogue.records import Alias
from app.catalogue.versions import check_new_version
from app.cluster.catalogue import ranges, transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.key_bindings import Binding, KeyBindings
from app.cluster.catalogue.records import Catalogue, Change
from app.cluster.key_placement import KeyPlacement
from app.cluster.router.keyed_version_writer import KeyedVersionWriter
from app.cluster.router.running_uploads import RunningUploads
from app.cluster.router.segment_writer import ShardAccess
from app.cluster.router.sharded_tensors import ShardedResident, ShardedTensors
from app.cluster.router.sharded_upload import (
    KeyedUpload,
    PulledUpload,
    ShardedUpload,
    Spool,
    SpooledUpload,
    StreamedUpload,
)
from app.cluster.router.table_etags import Measured, TableEtags
from app.cluster.router.table_snapshot import ContentSnapshot, TableSnapshots
from app.cluster.router.version_writer import BytesBefore, VersionWriter
from app.cluster.shard_map import ShardedVersion, ShardMap, bounds_of
from app.errors import GatherError
from app.keys.key_column import KeyColumn, KeyType
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import not_found
from app.store.tensor_metadata import Metadata
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from app.tensors.tensor import nbytes
from app.tensors.tensor_name import check_new_name, check_reference, split_reference

ANY: Final = ("*",)
"""The ETags of a condition that every ETag satisfies."""


class Serving(Protocol):
    """Switches a router to new catalogues."""

    def map_of(self, catalogue: Catalogue) -> ShardMap:
        """Return the map of a catalogue."""

    def serve(self, catalogue: Catalogue) -> ShardMap:
        """Wait until all workers use this catalogue or a newer one, and return its map."""


class PublishedTensors(ShardedTensors):
    """The tables of the newest catalogue; `client` changes the catalogue.

    `access` holds the parameters for calling shards.

    `spool` creates files for uploads that cannot be streamed.
    """

    def __init__(self, client: CatalogueClient, serving: Serving, limits: Limits, keep: int, spool: Spool) -> None:
        super().__init__(ShardMap())
        self.access = ShardAccess(None)
        self._client = client
        self._serving = serving
        self._limits = limits
        self._keep = keep
        self._spool = spool
        self._uploads = RunningUploads(client)
        self._bindings = KeyBindings(client.database)
        self.etags: TableEtags
        self.snapshots: TableSnapshots
        """`etags` and `snapshots` are set before requests are served, because they call shards over the service's
        connections.
        """

    # Publishing

    def etag_to_replace(self, name: str) -> str | None:
        check_new_version(self._client.catalogue.record_of(name))
        resident = self._newest_resident(name)
        return None if resident is None else self.etags.current_etag(resident)

    def upload(self, spec: UploadSpec) -> Upload:
        """Begin an upload that is streamed to the shards. Each shard decides for itself what it keeps in memory.

        Raises name_conflict, limit_exceeded, insufficient_storage and shard_unavailable. Also raises
        element_count_mismatch unless there is one key per row, and not_implemented if a capacity is given.
        """
        check_new_name(spec.name)
        if spec.capacity is not None:
            raise GatherError(
                "not_implemented",
                "capacity is for tables on one machine: in a cluster, each shard makes room as rows arrive",
                pointer="/query/capacity",
                hint="Leave out 'capacity'.",
            )
        check_new_version(self._client.catalogue.record_of(spec.name))

        def begin(bytes_before: BytesBefore) -> VersionWriter:
            return VersionWriter(
                self._client, self.access, spec.name, spec.dtype, spec.shape, bytes_before, self._uploads, spec.replicas
            )

        if spec.keys is not None:
            return KeyedUpload(spec, self._limits, partial(self._begin_keyed, spec, spec.keys.dtype), self._spool)
        if _is_spooled(spec):
            return SpooledUpload(spec, self._limits, begin, self._spool)
        return (PulledUpload if spec.has_ranges else StreamedUpload)(spec, self._limits, begin)

    def _begin_keyed(self, spec: UploadSpec, dtype: KeyType, column: KeyColumn, sha256: str) -> KeyedVersionWriter:
        return KeyedVersionWriter(
            self._client, self.access, spec.name, spec.dtype, spec.shape, column, KeyPlacement.draw(dtype, sha256),
            self._uploads, spec.replicas,
        )  # fmt: skip

    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Publish a finished upload as the next version of its table.

        Returns its metadata, and whether the name is new.

        Raises name_conflict, precondition_failed, insufficient_storage and shard_unavailable; the upload is then
        abandoned.
        """
        assert isinstance(upload, ShardedUpload)
        assert upload.writer is not None, "`finish` comes first"
        spec = upload.spec
        try:
            conditions = self._conditions_on_upload(conditions, spec.name)
            keep = self._keep if spec.keep is None else spec.keep
            # In the source, the segments of spooled uploads and of tables with keys are not contiguous, so they have no
            # origin.
            origin = "" if _is_spooled(spec) or spec.keys is not None else spec.origin
            version, catalogue = upload.writer.publish(conditions, upload.digest, keep, origin, spec.note)
        except BaseException:
            upload.abandon()
            raise
        found = self._serving.serve(catalogue)
        published = found.tables[spec.name].version(version.number)
        assert published is not None, "the catalogue has it"
        # A new name was created together with this version.
        return self._describe(spec.name, published, found), catalogue.tables[spec.name].created == version.created

    # Other changes

    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        check_reference(reference)
        name, number = split_reference(reference)
        conditions = self._conditions_on_upload(conditions, reference)
        going: list[int] = []

        def remove(catalogue: Catalogue) -> Change | None:
            own = catalogue.record_of(name)
            if going and not any(own.version(one) for one in going):
                return None  # an earlier attempt has removed it
            going[:] = [one.number for one in own.versions if number in (None, one.number)]
            return transitions.remove_versions(catalogue, reference, conditions)

        self._change(remove)

    def set_replicas(self, name: str, replicas: int) -> Metadata:
        changed = self._change(lambda catalogue: transitions.set_replicas(catalogue, name, replicas))
        return self._describe(name, changed.tables[name].current, changed)

    def put_aliases(self, moves: Sequence[AliasMove]) -> list[tuple[Alias, bool]]:
        now, etags = time.time_ns(), [new_etag() for _ in moves]
        made: list[tuple[Alias, bool]] = []

        def put(catalogue: Catalogue) -> Change | None:
            if any(one.etag in etags for move in moves if (one := catalogue.aliases.get(move.alias)) is not None):
                return None  # an earlier attempt has written them
            made[:] = move_aliases(moves, catalogue.record_of, now, etags)
            return transitions.put_aliases(one for one, _ in made if one.etag in etags)

        self._change(put)
        return made

    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        is_tried = False

        def remove(catalogue: Catalogue) -> Change | None:
            nonlocal is_tried
            if is_tried and alias not in catalogue.aliases:
                return None  # an earlier attempt has removed it
            is_tried = True
            return transitions.remove_alias(catalogue, alias, conditions)

        self._change(remove)

    # Scatters

    def open_ranges(self, table: str, number: int) -> None:
        """Open the ranges of a version for scatters. Blocks. Raises tensor_not_found and shard_unavailable."""
        self._serving.serve(self._client.transact_all(lambda catalogue: ranges.open_ranges(catalogue, table, number)))

    async def bind(self, scope: str, key: str, content_id: str, digest: str) -> Binding:
        """Bind an Idempotency-Key to a content ID; see `KeyBindings.bind`."""
        return await asyncio.wrap_future(self._bindings.submit(scope, key, content_id, digest))

    async def binding_of(self, scope: str, key: str) -> Binding | None:
        """Return the binding of an Idempotency-Key, or None for a new key. Raises shard_unavailable."""
        return await asyncio.to_thread(self._bindings.find, scope, key)

    async def locate(self, content_id: str) -> tuple[str, ShardedVersion] | None:
        """Return the table name and version with this content ID, or None if the newest catalogue does not contain it.

        Raises shard_unavailable.
        """
        return self.shard_map.locate_content(content_id) or await asyncio.to_thread(self._locate_in_newest, content_id)

    def _locate_in_newest(self, content_id: str) -> tuple[str, ShardedVersion] | None:
        return self._newest_map().locate_content(content_id)

    def _newest_map(self) -> ShardMap:
        """Return the map of the newest catalogue, once all workers use it. Raises shard_unavailable."""
        try:
            newest = self._client.refresh()
        except OSError:
            raise transitions.unavailable("etcd does not answer") from None
        return self._serving.serve(newest)

    async def current(self, found: Sequence[Metadata], request: ServedRequest | None) -> list[Metadata]:
        """Return the metadata of resolved tables with current ETags and, for tables with keys, current row counts.

        If `request` is None, known sequences are used for ranges that do not respond soon. Otherwise, such ranges raise
        shard_unavailable or deadline_exceeded.
        """
        residents = [self._open_resident(f"{one.name}@{one.version}") for one in found]
        asked = [one for one in residents if one is not None]
        measured = dict(zip(map(id, asked), await self.etags.measure(asked, request), strict=True))
        return [
            one if resident is None else _with_current_etag(one, measured[id(resident)])
            for one, resident in zip(found, residents, strict=True)
        ]

    async def snapshot(self, found: Metadata, first: int, last: int, request: ServedRequest) -> ContentSnapshot | None:
        """Return rows of a version, or None if no range is open and there are no keys.

        The rows of each range are read as of one moment.
        """
        reference = f"{found.name}@{found.version}"
        resident = self._open_resident(reference) if found.keys is None else self._keyed_resident(reference)
        return None if resident is None else await self.snapshots.open(resident, first, last, request)

    async def keyed_snapshot(self, found: Metadata, request: ServedRequest, *, with_rows: bool) -> ContentSnapshot:
        resident = self._keyed_resident(f"{found.name}@{found.version}")
        return await self.snapshots.open_keyed(resident, request, with_rows=with_rows)

    async def keys_snapshot(self, found: Metadata, request: ServedRequest) -> ContentSnapshot:
        return await self.snapshots.open_keys(self._keyed_resident(f"{found.name}@{found.version}"), request)

    def _keyed_resident(self, reference: str) -> ShardedResident:
        """Return the version that a reference refers to. Raises tensor_not_found."""
        resident = self.get(reference)
        if not isinstance(resident, ShardedResident):
            raise not_found(reference, self)
        return resident

    def _open_resident(self, reference: str) -> ShardedResident | None:
        """Return the version that a reference refers to if any of its ranges is open, or else None."""
        resident = self.get(reference)
        return resident if isinstance(resident, ShardedResident) and resident.version_in_map.is_open else None

    def _newest_resident(self, reference: str) -> ShardedResident | None:
        """Return the version that a reference refers to in the newest catalogue, or None. Blocks.

        Raises shard_unavailable.
        """
        newest = self._newest_map()
        found = newest.find(reference)
        return None if found is None else ShardedResident(newest, *found)

    def _conditions_on_upload(self, conditions: Conditions, reference: str) -> Conditions:
        """Translate conditions on an open table into conditions on its version in the catalogue.

        The conditions are checked here, against the state reported by the primaries. Later scatters do not affect which
        version is replaced. Raises precondition_failed and shard_unavailable.
        """
        if conditions == ALWAYS:
            return conditions
        resident = self._newest_resident(reference)
        if resident is None or not resident.version_in_map.is_open:
            return conditions
        now, uploaded = self.etags.current_etag(resident), resident.version_in_map.etag
        conditions.check(now)
        match, none_match = conditions.match, conditions.none_match
        if match is not None and match != ANY:
            match = (uploaded,)
        if none_match is not None and none_match != ANY:
            none_match = tuple(tag for tag in none_match if tag != uploaded)
        return Conditions(match, none_match, conditions.pointer)

    def close(self) -> None:
        """Stop binding keys. Blocks."""
        self._bindings.close()

    def _change(self, transition: Callable[[Catalogue], Change | None]) -> ShardMap:
        """Make a change, and return a map that includes it and that all workers use."""
        return self._serving.serve(self._client.transact(transition))


def _with_current_etag(found: Metadata, now: Measured) -> Metadata:
    """Return the metadata of an open table with its current ETag and, if it has keys, its current number of rows."""
    etag, rows = now
    if found.keys is None:
        return replace(found, etag=etag)
    count = sum(rows)
    ranges = tuple(
        replace(one, start=start, stop=stop)
        for one, (start, stop) in zip(found.ranges, bounds_of(rows), strict=False)
    )  # fmt: skip
    dtype, shape = DTYPES[found.dtype], (count, *found.shape[1:])
    size = nbytes(dtype, shape) if dtype.item_size else found.size  # changes by key do not apply to rows of strings
    return replace(found, etag=etag, shape=shape, size=size, capacity=count, ranges=ranges)


def _is_spooled(spec: UploadSpec) -> bool:
    """Return whether the items are first written to a file, because the segments' bounds are known only at the end."""
    return spec.dtype.kind == "string" or (spec.fortran and len(spec.shape) > 1)
