"""`GET /tensors/{name}/keys` of a table in row ranges: the keys of one range after those of another."""

from __future__ import annotations

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import is_unchanged
from app.api.routes.tensors_content import BY_ACCEPT, content_fields
from app.api.routes.tensors_content_in_ranges import ChangingTables, send_snapshot
from app.api.routes.tensors_keys import codec_of_keys, no_keys
from app.formats.body_formats import SAFETENSORS_FILE
from app.formats.safetensors.upload import keys_head
from app.store.tensor_store_interface import TensorStore
from app.tensors.dtypes import DTYPES


class ShardedKeysRoute:
    """Downloads of the keys of what `store` lists; `changing` is given if its tables may have keys."""

    def __init__(self, store: TensorStore, changing: ChangingTables | None) -> None:
        self.store = store
        self.changing = changing

    async def __call__(self, context: RequestContext, name: str) -> None:
        """Answer with all keys. Raises GatherError for everything it refuses."""
        context.query_fields()
        metadata = self.store.metadata(name)
        if metadata.keys is None or self.changing is None:
            raise no_keys(name)
        (metadata,) = await self.changing.current([metadata], context)
        assert metadata.keys is not None
        if await is_unchanged(context, metadata.etag, BY_ACCEPT):
            return
        dtype, shape = metadata.keys.dtype, metadata.shape[:1]
        codec = codec_of_keys(context, dtype)
        if codec is SAFETENSORS_FILE:
            snapshot = await self.changing.keyed_snapshot(metadata, context, with_rows=False)
            assert snapshot.keys is not None
            head = keys_head(snapshot.keys)
        else:
            head = codec.write_head(DTYPES[dtype], shape, shape[0] * DTYPES[dtype].item_size)
            snapshot = await self.changing.keys_snapshot(metadata, context)
        fields = content_fields(codec, dtype, shape, snapshot.etag, metadata.version, len(head) + snapshot.size)
        await send_snapshot(context, snapshot, head, fields)
