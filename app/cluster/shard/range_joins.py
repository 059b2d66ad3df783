"""Bring assigned replicas in sync: they ask their primary to join, and receive records or a copy of the rows."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Final

import orjson

from app.api.route_table import path_of
from app.api.upload_receiver import UploadReceiver
from app.cluster.catalogue.listed_segments import Listed
from app.cluster.replication.primary import Join, JoinAnswer
from app.cluster.replication.replica import Appended, CopyOrder
from app.cluster.shard.peers import PeerFailed, Peers
from app.cluster.shard.pull_segment import SILENT_S
from app.cluster.shard.range_log import RangeLog
from app.cluster.shard.range_messages import Admission, join_json, read_keys
from app.cluster.shard.range_metrics import RangeCounts
from app.cluster.shard.read_gate import GatedStore
from app.cluster.shard_map import digest_of
from app.formats.body_formats import RAW, SAFETENSORS_FILE
from app.formats.npy import Start
from app.formats.safetensors.upload import read_start
from app.memory.budget import UNCOUNTED
from app.store.files.keyed_upload import KeyedUpload
from app.store.files.tensor_file import sequence_in
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import storage_errors

_JOIN_S: Final = 40.0
"""Maximum seconds for a primary to respond; it may have to wait for scatters and for etcd."""
_KEYS_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 20
logger = logging.getLogger("gathernd")


@dataclass
class Joins:
    """Bring the replicas on the shard `node` into their in-sync sets. Methods block."""

    node: str
    store: GatedStore
    log: RangeLog
    peers: Peers
    counts: RangeCounts
    is_stopping: Callable[[], bool]

    def join(self, one: Listed) -> JoinAnswer:
        """Take one step toward getting in sync with a range, and return the primary's response.

        Raises PeerFailed, GatherError, OSError and ValueError.
        """
        assert one.opened is not None
        tensor, primary = one.tensor, one.opened.primary
        state = self.log.state(tensor)
        wish = Join(self.node, state)
        path = path_of("joinRange", tensor=tensor)
        answer = self.peers.ask(primary, "POST", path, [join_json(wish)], _JOIN_S)
        if answer.status != 200:
            raise PeerFailed(f"{primary}: status {answer.status}: {answer.body[:300].decode(errors='replace')}")
        found = Admission.from_body(answer.body)
        if found.answer is JoinAnswer.COPY and found.copy is not None:
            if state is not None:
                self.log.raise_epoch(tensor, found.copy.epoch)
            self._copy(one, primary, found.copy)
        elif found.answer is JoinAnswer.RECORDS and found.records is not None:
            appended = self.log.append(tensor, found.records, found.frames)
            if not isinstance(appended, Appended):
                raise PeerFailed(f"the records of {tensor} from {primary} do not fit: {appended.why}")
        return found.answer

    def _copy(self, one: Listed, node: str, order: CopyOrder) -> None:
        """Copy the rows and Idempotency-Keys of a range from a shard, and publish them here at their sequence."""
        tensor, segment = one.tensor, one.segment
        receiver = UploadReceiver(
            partial(_start_of, one), partial(self._begin, one, node), sys.maxsize, encoding=None, digest=None
        )
        try:
            sequence = self._read_rows(one, node, partial(_write, receiver))
            with storage_errors():
                upload = receiver.end()
            answer = self.peers.ask(node, "GET", path_of("rangeKeys", tensor=tensor), seconds=_KEYS_S)
            if answer.status != 200:
                raise PeerFailed(f"{node}: status {answer.status} for the keys of {tensor}")
            keys = [key for key in read_keys(answer.body) if key.sequence <= sequence]
        except BaseException:
            receiver.abandon()
            self.counts.count_copy("failed")
            raise
        sha256 = segment.sha256 if one.version.keys is None else ""
        if self.log.adopt(tensor, upload, sequence, order, keys, sha256):
            self.counts.count_copy("done")
            logger.info("%s: copied from %s at sequence %d", tensor, node, sequence)

    def _begin(self, one: Listed, node: str, start: Start) -> Upload:
        """Begin the upload of a copy, with the identity and hashes of the original upload. Raises PeerFailed."""
        version = one.version
        found = start.dtype, start.shape[1:], None if start.keys is None else start.keys.dtype
        if version.keys is None:
            return self.store.upload(UploadSpec(one.tensor, version.dtype, start.shape, keep=1))
        if found != (version.dtype, version.shape[1:], version.keys.dtype):
            raise PeerFailed(f"{node}: {one.tensor} is another table there: {found}")
        rows, keys = self._hashes(one.tensor, node)
        if digest_of(rows, keys) != one.segment.sha256:
            raise PeerFailed(f"{node}: {one.tensor} is of another upload there")
        upload = self.store.upload(UploadSpec(one.tensor, version.dtype, start.shape, keep=1, keys=start.keys))
        assert isinstance(upload, KeyedUpload)
        upload.take_identity(upload.id, rows, keys)
        return upload

    def _hashes(self, tensor: str, node: str) -> tuple[str, str]:
        """Return the hashes of the rows and keys in a shard's copy. Raises PeerFailed."""
        answer = self.peers.ask(node, "GET", path_of("getTensor", name=tensor), seconds=_KEYS_S)
        if answer.status != 200:
            raise PeerFailed(f"{node}: status {answer.status} for {tensor}")
        try:
            found = orjson.loads(answer.body)
            return str(found["sha256"]), str(found["keys"]["sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise PeerFailed(f"{node}: the metadata of {tensor} cannot be read: {error}") from None

    def _read_rows(self, one: Listed, node: str, write: Callable[[memoryview], None]) -> int:
        """Pass all rows of a shard's copy to `write`, keys first. Returns the copy's sequence.

        Raises PeerFailed and the errors of `write`.
        """
        tensor, has_keys = one.tensor, one.version.keys is not None
        size = 0 if has_keys else one.segment.size
        address = self.peers.address_of(node)
        connection = self.peers.take(address)
        try:
            connection.close()  # an idle connection may be stale, and this request is not repeated
            connection.connect()
            connection.sock.settimeout(SILENT_S)
            fields = self.peers.headers_for(node) | {"Accept": (SAFETENSORS_FILE if has_keys else RAW).media_type}
            connection.request("GET", path_of("tensorContent", name=tensor), headers=fields)
            answer = connection.getresponse()
            if answer.status != 200:
                raise PeerFailed(f"{node}: status {answer.status}: {answer.read(300).decode(errors='replace')}")
            sequence = sequence_in(answer.headers["ETag"] or "")
            left = int(answer.headers["Content-Length"])
            if left != size and size:
                raise PeerFailed(f"{node}: {tensor} has {left} bytes there, and not {size}")
            self._pieces(answer, left, write)
        except (OSError, HTTPException, ValueError) as error:
            raise PeerFailed(f"{node}: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        return sequence

    def _pieces(self, answer: HTTPResponse, left: int, write: Callable[[memoryview], None]) -> None:
        piece = memoryview(bytearray(min(left, _PIECE_BYTES)))
        while left:
            count = answer.readinto(piece[:left])
            if not count or self.is_stopping():
                raise PeerFailed(f"the copy ended {left} bytes before its end")
            write(piece[:count])
            left -= count


def _start_of(one: Listed, head: bytearray, whole: bool) -> Start | None:
    """Return the start of a copy.

    For a table without keys, a shard sends only rows, so their description comes from the catalogue.
    """
    version, segment = one.version, one.segment
    if version.keys is None:
        return Start(version.dtype, (segment.stop - segment.start, *version.shape[1:]) if version.shape else (), 0)
    start = read_start(head, UNCOUNTED)
    if start is None and whole:
        raise PeerFailed(f"the copy of {one.tensor} ended before its rows")
    return start


def _write(receiver: UploadReceiver, piece: memoryview) -> None:
    """Write a piece.

    Raises insufficient_storage if this machine's disk fails, because that is not a failure of the source shard.
    """
    with storage_errors():
        receiver.take(piece)
