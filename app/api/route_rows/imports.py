"""The routes for imports; `app.api.routes.imports` handles them."""

from __future__ import annotations

from typing import Final

from app.api.route_rows.operation import TENSORS, Operation, Route, header, in_path, parameter
from app.api.route_rows.tensors import IF_MATCH, IF_NONE_MATCH, MEMORY, NEW_NAME, REPLICAS, keep, limit
from app.api.schemas.tensor_messages import ImportBody, ImportList
from app.requests.schemas.management_requests import ImportRequest
from app.security.authorizer import Access

_ID: Final = in_path("id", "Id of the import.")


IMPORT_ROUTES: Final = (
    Route("/tensors/{name}/import", TENSORS, Access.TENSORS, {
        "POST": Operation(
            "importTensor",
            "Import the next version of a tensor from a URL",
            (
                "name_conflict", "precondition_failed", "payload_too_large", "unsupported_media_type",
                "element_count_mismatch", "limit_exceeded", "import_failed", "insufficient_storage", "not_implemented",
            ),
            (
                NEW_NAME,
                *MEMORY,
                keep("How many of the newest versions to keep, as for an upload."),
                REPLICAS,
                IF_MATCH,
                IF_NONE_MATCH,
            ),
            body=ImportRequest,
            answer=ImportBody,
            answers={
                202: {
                    "description": "Begun",
                    "headers": {"Location": header("Path of the import, which reports its progress.")},
                }
            },
            status=202,
            description="The service responds once it has found the file, read its header, and reserved space in the "
            "store. It then reads the rest in ranges while it serves requests. The data becomes visible all at once, "
            "as with an upload.",
        )
    }),
    Route("/imports", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "listImports",
            "List the imports",
            (),
            (limit("imports"), parameter("after", "query", "List the imports that began after this id.")),
            answer=ImportList,
            description="The running imports and the last thousand finished ones.",
        )
    }),
    Route("/imports/{id}", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "getImport",
            "Progress of an import, or how it ended",
            ("not_found",),
            (_ID,),
            answer=ImportBody,
        ),
        "DELETE": Operation(
            "endImport",
            "Cancel an import, or forget one that has ended",
            ("not_found", "insufficient_storage"),
            (_ID,),
            answers={204: {"description": "Canceled within a second, or forgotten if it had ended"}},
            status=204,
        ),
    }),
)  # fmt: skip
