"""The record of an upload goes when the upload is over, also if it comes after that."""

from __future__ import annotations

from pathlib import Path

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Change, Record, UploadRecord
from app.cluster.router.running_uploads import RunningUploads
from tests.cluster.clustered import catalogue_client
from tests.cluster.databases import running_database
from tests.cluster.waiting import until


def test_a_record_that_comes_after_its_upload_is_over_is_ended(tmp_path: Path) -> None:
    with running_database(tmp_path) as database, catalogue_client(database) as client:
        uploads = RunningUploads(client, look_s=0.2)
        first, other = uploads.begin(), uploads.begin()
        own = UploadRecord("items", (), uploads.router)
        write(client, **{first: own, other: own, "elsewhere": UploadRecord("items", (), "another router")})
        uploads.end(first)
        until(lambda: set(client.refresh().uploads) == {other, "elsewhere"}, "the first record is gone")
        write(client, **{first: own})
        until(lambda: set(client.refresh().uploads) == {other, "elsewhere"}, "the late record is gone")
        uploads.end(other)
        until(lambda: set(client.refresh().uploads) == {"elsewhere"}, "both are gone")


def write(client: CatalogueClient, **records: UploadRecord) -> None:
    """Write records, which a late transaction may do."""
    puts: dict[str, Record | None] = {f"uploads/{content_id}": one for content_id, one in records.items()}
    assert client.database.commit(Change(puts), client.refresh())
    client.refresh()
