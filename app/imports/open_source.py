"""The source that a URL names, by its scheme."""

from __future__ import annotations

from app.imports.file_source import FileSource
from app.imports.source_interface import Source
from app.imports.source_urls import AllowedSources, SourceUrl


def source_of(url: SourceUrl, allowed: AllowedSources, s3_endpoint: str | None = None) -> Source:
    """A source that is not open yet; `s3_endpoint` is where `s3://` is asked for, AWS without it."""
    # The libraries of others take time and memory, which a service without imports does not spend.
    if url.scheme == "file":
        return FileSource(url, allowed)
    if url.scheme == "s3":
        from app.imports.s3_source import S3Source  # noqa: PLC0415

        return S3Source(url, s3_endpoint)
    from app.imports.https_source import HttpsSource  # noqa: PLC0415

    return HttpsSource(url, allowed)
