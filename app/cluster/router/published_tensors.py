"""The tables of a cluster with a coordinator, which change by publishing: uploads, removals and aliases go through it.

What is refused is judged here first, by the newest map, with the errors of one machine; the coordinator judges again,
and where the map has changed meanwhile all is judged anew. Methods that change something block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from ssl import SSLContext
from typing import Final, TypeVar
from uuid import uuid4

from app.cluster.coordinator.coordinator_client import CoordinatorClient, RunningPublication, StaleMap, unavailable
from app.cluster.coordinator.messages import Publish
from app.cluster.router.sharded_tensors import ShardedTensors
from app.cluster.router.sharded_upload import ShardedUpload, Spool, SpooledUpload, StreamedUpload
from app.cluster.router.version_writer import BytesBefore, VersionSize, VersionWriter
from app.cluster.shard_map import ShardMap
from app.store.catalogue.catalogue_rows import Alias
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import name_conflict, not_found, tensor_in_use, unknown_reference
from app.store.tensor_metadata import ALWAYS, Conditions, Metadata
from app.tensors.shape_limits import Limits
from app.tensors.tensor_name import check_new_name, check_reference, split_reference

_ATTEMPTS: Final = 5
Result = TypeVar("Result")


class PublishedTensors(ShardedTensors):
    """The tables of the newest map; `client` changes it, and shards are asked with `key`, and over
    TLS where `tls` is given.

    `spool` begins files for what cannot go on as it comes.
    """

    def __init__(
        self,
        shard_map: ShardMap,
        client: CoordinatorClient,
        limits: Limits,
        keep: int,
        key: str | None,
        spool: Spool,
        tls: SSLContext | None = None,
    ) -> None:
        super().__init__(shard_map)
        self._spool = spool
        self.tls = tls
        self.client = client
        self.limits = limits
        self._keep = keep
        self.key = key

    # Publishing

    def etag_to_replace(self, name: str) -> str | None:
        """The ETag of the current version of a table that is to be uploaded; None where there is none."""
        table = self.shard_map.tables.get(name)
        return None if table is None else table.current.etag

    def upload(self, spec: UploadSpec) -> Upload:
        """An upload that goes on to the shards. Shards decide themselves what they keep in memory.

        Raises name_conflict, limit_exceeded, insufficient_storage and shard_unavailable.
        """
        name, dtype, shape = spec.name, spec.dtype, spec.shape
        check_new_name(name)
        if name in self.shard_map.aliases:
            raise name_conflict(name, is_alias=True)
        created = time.time_ns()
        kept = self._keep if spec.keep is None else spec.keep
        written_first = dtype.kind == "string" or (spec.fortran and len(shape) > 1)
        again = "" if written_first else spec.origin  # ranges of others are not in one piece there

        def begin(size: VersionSize, bytes_before: BytesBefore) -> VersionWriter:
            def begin_by(shard_map: ShardMap) -> VersionWriter:
                asked = Publish(
                    uuid4().hex, name, dtype.name, shape, size.row, kept, shard_map.generation,
                    created=created, size=size.total, origin=again,
                )  # fmt: skip

                def publish(expected: str, sha256: str) -> RunningPublication:
                    return self.client.publish(replace(asked, expected=expected, sha256=sha256))

                return VersionWriter(dtype, shape, size, bytes_before, publish, self.key, self.tls)

            return self._changed(begin_by)

        if written_first:
            return SpooledUpload(spec, self.limits, begin, self._spool)
        return StreamedUpload(spec, self.limits, begin)

    def put(self, upload: Upload, conditions: Conditions = ALWAYS) -> tuple[Metadata, bool]:
        """Publish a finished upload as the next version of its table: its metadata, and whether the name is new.

        Raises name_conflict, precondition_failed, insufficient_storage and shard_unavailable, and abandons it then.
        """
        assert isinstance(upload, ShardedUpload)
        name = upload.spec.name
        try:
            table = self.shard_map.tables.get(name)
            conditions.check(None if table is None else table.current.etag)
            current = "" if table is None else table.current.content_id
            number, found = upload.commit("*" if conditions == ALWAYS else current)
        except StaleMap as stale:
            upload.abandon()
            raise unavailable(f"versions of {name!r} were removed meanwhile: {stale}") from None
        except BaseException:
            upload.abandon()
            raise
        version = found.tables[name].version(number) if name in found.tables else None
        if version is None:  # another one has been published and has taken its place
            raise unavailable(f"version {number} of {name!r} was published, and has been superseded and removed since")
        return self._describe(name, version, found), table is None

    # Other changes

    def delete(self, reference: str, conditions: Conditions = ALWAYS) -> None:
        """Remove a table with all its versions, or one version.

        Raises invalid_field, tensor_not_found, name_conflict for an alias, tensor_in_use where an alias names it,
        precondition_failed and shard_unavailable.
        """
        check_reference(reference)
        name, number = split_reference(reference)

        def change(shard_map: ShardMap) -> None:
            if reference in shard_map.aliases:
                raise name_conflict(reference, is_alias=True)
            found = shard_map.find(reference)
            if found is None:
                raise not_found(reference, self)
            conditions.check(found[1].etag)
            numbers = [number] if number is not None else [one.number for one in shard_map.tables[name].versions]
            used = [
                self._alias(alias, shard_map)
                for alias, target in sorted(shard_map.aliases.items())
                if split_reference(target)[0] == name and split_reference(target)[1] in numbers
            ]
            if used:
                raise tensor_in_use(reference, used)
            self.client.change("remove", name, ",".join(map(str, numbers)), shard_map.generation)

        self._changed(change)

    def put_alias(self, alias: str, target: str, conditions: Conditions = ALWAYS) -> tuple[Alias, bool]:
        """Make or move an alias to the version `target`: the alias, and whether it is new.

        Raises invalid_field, name_conflict, precondition_failed, shard_unavailable, and tensor_not_found at /tensor.
        """
        check_new_name(alias)

        def change(shard_map: ShardMap) -> tuple[Alias, bool]:
            found = None if target in shard_map.aliases else shard_map.find(target)
            if found is None or split_reference(target)[1] is None:
                raise unknown_reference(target, "/tensor", self, tell_names=False)
            if alias in shard_map.tables:
                raise name_conflict(alias, is_alias=False)
            is_new = alias not in shard_map.aliases
            conditions.check(None if is_new else self._alias(alias, shard_map).etag, "alias")
            if shard_map.aliases.get(alias) != target:
                shard_map = self.client.change("put_alias", alias, target, shard_map.generation)
            else:
                self.client.take(shard_map)  # other workers may serve by an older one
            return self._alias(alias, shard_map), is_new

        return self._changed(change)

    def delete_alias(self, alias: str, conditions: Conditions = ALWAYS) -> None:
        """Remove an alias. Raises tensor_not_found, precondition_failed and shard_unavailable."""

        def change(shard_map: ShardMap) -> None:
            conditions.check(self.alias(alias).etag, "alias")
            self.client.change("remove_alias", alias, "", shard_map.generation)

        self._changed(change)

    def _changed(self, change: Callable[[ShardMap], Result]) -> Result:
        """What `change` makes of the newest map; again with a newer one where that was too old."""
        for _ in range(_ATTEMPTS):
            shard_map = self.shard_map
            try:
                return change(shard_map)
            except StaleMap:
                try:
                    newer = self.client.newer_map(shard_map.generation)
                except OSError:
                    newer = None
                if newer is not None:
                    self.client.take(newer)
        raise unavailable("others change the same all the time")
