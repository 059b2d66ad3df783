"""A request for each error, as a command, and the whole answer: what the pages at /errors/{code} show.

A test runs every command that provokes its error by itself, and compares the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from app.api.error_responses import error_body
from app.api.route_table import path_of
from app.api.schemas import examples
from app.errors import CODES, Code, GatherError, Place, Rule
from app.imports.source_errors import import_failed
from app.operators.dialects import GATHERND, SCATTERND
from app.operators.lookup import RULES as LOOKUP_RULES
from app.operators.registry import OPERATORS
from app.store.catalogue.catalogue_rows import Alias
from app.store.store_errors import damaged, name_conflict, no_tensor, over_quota, tensor_in_use
from app.tensors.lookup_call import LOOKUP
from app.tensors.near_dtype import hint_for_dtype

ADDRESS: Final = "http://127.0.0.1:8080"
"""Where the service of the commands listens."""
ETAG: Final = '"9f86d081884c7d65-0"'
"""Stands for the ETag of a tensor, which is another for every upload."""
REQUEST_ID: Final = "5f2c9a1e-1"
IMPORTED: Final = "file:///data/tables/"
"""From where the service of a command imports."""
ITEMS: Final = "The service has the resident tensor `items`, float32 of shape [3, 2]."
_DATA: Final = {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]}
_GATHERND: Final = path_of("gathernd")
_ITEM: Final = path_of("getTensor", name="items")
_RULES: Final = GATHERND["onnx-13"].rules
_ITEMS_BAGS: Final = {
    "tensor": "items",
    "indices": {"dtype": "int64", "shape": [3], "values": [2, 0, 1]},
    "offsets": {"dtype": "int64", "shape": [2], "values": [0, 2]},
    "pooling": "sum",
}
_JSON: Final = "-H 'Content-Type: application/json'"


class Example(NamedTuple):
    """What the page of an error shows: `about` says what the command needs, where that is not plain."""

    command: str
    answer: dict[str, Any]
    about: str = ""


def _int64(shape: list[int], values: list[Any]) -> dict[str, Any]:
    return {"dtype": "int64", "shape": shape, "values": values}


def _curl(path: str, document: Mapping[str, Any] | None = None, *options: str) -> str:
    """A command that sends `document`, each member on its own line; without one it is a GET."""
    words = [f"curl -s {ADDRESS}{path}", *options]
    if document is not None:
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
        words += [_JSON, f"-d '{{\n{lines}}}'"]
    return " ".join(words)


def _gather(document: Mapping[str, Any]) -> str:
    return _curl(_GATHERND, document)


def _made(command: str, error: GatherError, about: str = "") -> Example:
    path = re.search(rf"{ADDRESS}([^ ?]*)", command)
    assert path is not None
    _, body = error_body(error, REQUEST_ID, path[1])
    return Example(command, json.loads(body), about)


def _at(
    code: Code, detail: str, pointer: str, rule: Rule | None = None, hint: str | None = None, **place: Any
) -> GatherError:
    return GatherError(code, detail, places=[Place(pointer, **place)], rule=rule, hint=hint)


def _limited(code: Code, detail: str, limit: str, maximum: int, **more: Any) -> GatherError:
    return GatherError(code, detail, facts={"limit": limit, "maximum": maximum}, **more)


_MALFORMED: Final = _gather({"data": {**_DATA, "values": ["@", 1, 2, 3]}, "indices": _int64([1, 1], [0])}).replace(
    '"@"', "NaN"
)
_ONE: Final = {"data": _DATA, "indices": _int64([2, 2], [0, 0, 1, 1])}


def _examples() -> Mapping[Code, Example]:
    place = _MALFORMED.partition("-d '")[2].index("NaN")
    own: dict[Code, Example] = {
        "malformed_request": _made(
            _MALFORMED,
            GatherError(
                "malformed_request",
                f"the body is not JSON in UTF-8, nested 512 deep at most: see at byte {place}",
                hint=f'Write "NaN" in place of NaN at byte {place}.',
            ),
        ),
        "unauthorized": _made(
            _curl(path_of("listTensors")),
            GatherError("unauthorized", "this service asks for a key: send 'Authorization: Bearer KEY'"),
            "The service has `GATHERND_API_KEYS_FILE` set.",
        ),
        "forbidden": _made(
            _curl(_GATHERND, _ONE, "-H 'Origin: https://example.com'"),
            GatherError(
                "forbidden",
                "requests from pages of the origin 'https://example.com' are refused",
                hint="Leave out the field Origin, or have the operator add the origin to GATHERND_CORS_ORIGINS.",
            ),
            "A page of another site posts to a service on a loopback address: its Origin gives it away.",
        ),
        "not_found": _made(
            _curl("/gather_nd", _ONE),
            GatherError("not_found", "no route has the path /gather_nd", hint="Use the path '/gathernd'."),
        ),
        "method_not_allowed": _made(
            _curl(_GATHERND),
            GatherError("method_not_allowed", "/gathernd does not take GET", hint="Use the method POST."),
        ),
        "tensor_not_found": _made(
            _gather({"data": {"tensor": "itmes"}, "indices": _int64([1, 1], [0])}),
            no_tensor("itmes", "/data/tensor", ["items"]),
            ITEMS,
        ),
        "model_not_found": _made(
            _curl(path_of("modelMetadata", name="gather_nd")),
            GatherError(
                "model_not_found",
                "no model is named 'gather_nd'",
                hint="Write 'gathernd' in place of 'gather_nd'.",
            ),
        ),
        "request_timeout": _made(
            f"(printf '{{'; sleep 20) | {_curl(_GATHERND)} -X POST {_JSON} -T -",
            GatherError("request_timeout", "the body paused for more than 10 s"),
        ),
        "header_too_large": _made(
            f"{_curl(_GATHERND)} -H \"Cookie: $(head -c 70000 /dev/zero | tr '\\0' x)\"",
            _limited("header_too_large", "the header has more than 65536 bytes", "header_bytes", 65536),
        ),
        "name_conflict": _made(
            f"""{_curl(path_of("putAlias", alias="items"))} -X PUT -d '{{"tensor": "items@1"}}' {_JSON}""",
            name_conflict("items", is_alias=False),
            ITEMS,
        ),
        "tensor_in_use": _made(
            f"{_curl(_ITEM)} -X DELETE",
            tensor_in_use("items", [Alias("live", "items", 1, ETAG, 0, 0)]),
            f"{ITEMS} The alias `live` names its version 1.",
        ),
        "precondition_failed": _made(
            f"""{_curl(_ITEM)} -X DELETE -H 'If-Match: "4e07408562bedb8b-3"'""",
            GatherError(
                "precondition_failed",
                f"If-Match does not hold: the ETag is {ETAG}",
                hint=f"Read the tensor again, and send 'If-Match: {ETAG}' if the change still holds.",
            ),
            ITEMS,
        ),
        "range_not_satisfiable": _made(
            f"curl -s '{ADDRESS}{path_of('tensorContent', name='items')}?rows=2:9'",
            _at(
                "range_not_satisfiable",
                "rows 2:9 are asked for; the tensor has 3 rows",
                "/query/rows",
                hint="Ask for rows=2:3, since the tensor has 3 rows.",
            ),
            ITEMS,
        ),
        "payload_too_large": _made(
            f"head -c 70000000 /dev/zero | {_curl(_GATHERND)} {_JSON} --data-binary @-",
            _limited(
                "payload_too_large", "the body is larger than the limit of 67108864 bytes", "body_bytes", 67108864
            ),
        ),
        "unsupported_media_type": _made(
            _gather(_ONE).replace(f" {_JSON}", ""),
            GatherError(
                "unsupported_media_type",
                "'application/x-www-form-urlencoded' is not read here; application/json and application/x-safetensors "
                "are; with curl add -H 'Content-Type: application/json' (curl -d alone sends a form)",
                hint="Send 'Content-Type: application/json' with JSON in UTF-8, with curl by -H.",
            ),
        ),
        "unsupported_dtype": _made(
            _gather({**_ONE, "data": {**_DATA, "dtype": "float"}}),
            _at("unsupported_dtype", "'float' is no element type", "/data/dtype", hint=hint_for_dtype("float")),
        ),
        "element_count_mismatch": _made(
            _gather({**_ONE, "data": {**_DATA, "values": [[0, 1], [2]]}}),
            _at(
                "element_count_mismatch",
                "data: the values are neither a flat list of 4 items nor lists nested as the shape says",
                "/data/values",
                hint="Send 2 values in the list at /data/values/1, as shape [2, 2] asks: 1 came.",
            ),
        ),
        "rank_too_small": _made(
            _gather({"data": {"dtype": "float32", "shape": [], "values": [1]}, "indices": _int64([1], [0])}),
            _at(
                "rank_too_small",
                "data has rank 0 and needs rank 1 or more",
                "/data/shape",
                _RULES["rank_too_small"],
            ),
        ),
        "batch_dims_out_of_range": _made(
            _gather({**_ONE, "batch_dims": 2}),
            _at(
                "batch_dims_out_of_range",
                "batch_dims = 2 is outside [0, 1], as data has rank 2 and indices rank 2",
                "/batch_dims",
                _RULES["batch_dims_out_of_range"],
                value=2,
                allowed=(0, 1),
            ),
        ),
        "batch_shape_mismatch": _made(
            _gather({"data": _DATA, "indices": _int64([3, 1], [0, 1, 0]), "batch_dims": 1}),
            _at(
                "batch_shape_mismatch",
                "batch axis 0 has size 2 in data and 3 in indices",
                "/indices/shape",
                _RULES["batch_shape_mismatch"],
                value=3,
                axis=0,
                size=2,
            ),
        ),
        "index_depth_out_of_range": _made(
            _gather({"data": _DATA, "indices": _int64([1, 3], [0, 1, 0])}),
            _at(
                "index_depth_out_of_range",
                "index tuples have length 3, outside [1, 2]",
                "/indices/shape",
                _RULES["index_depth_out_of_range"],
                value=3,
                allowed=(1, 2),
            ),
        ),
        "output_too_large": _made(
            'printf \'{"data": {"dtype": "int8", "shape": [1, 524288], "base64": "%s"},\n'
            '"indices": {"dtype": "int64", "shape": [2049, 1], "base64": "%s"}}\' \\\n'
            '"$(head -c 524288 /dev/zero | base64 -w 0)" "$(head -c 16392 /dev/zero | base64 -w 0)" |\n'
            f"{_curl(_GATHERND)} {_JSON} --data-binary @-",
            _limited(
                "output_too_large",
                "the output of shape [2049, 524288] would have 1074266112 bytes; the limit is 1073741824",
                "output_bytes",
                1 << 30,
                pointer="/indices/shape",
            ),
        ),
        "limit_exceeded": _made(
            _gather({"data": {"dtype": "int8", "shape": [1] * 33, "values": [7]}, "indices": _int64([1, 1], [0])}),
            _limited("limit_exceeded", "data has rank 33; the limit is 32", "rank", 32, pointer="/data/shape"),
        ),
        "updates_shape_mismatch": _made(
            _curl(
                path_of("scatterTensor", name="items"),
                {"indices": _int64([1, 1], [0]), "updates": {"dtype": "float32", "shape": [1, 3], "values": [7, 8, 9]}},
            ),
            _at(
                "updates_shape_mismatch",
                "updates has shape [1, 3] and must have [1, 2]",
                "/updates/shape",
                SCATTERND["onnx-18"].rules["updates_shape_mismatch"],
                hint="Send updates of shape [1, 2].",
            ),
            ITEMS,
        ),
        "offsets_invalid": _made(
            _curl(path_of(LOOKUP), {"features": [_ITEMS_BAGS | {"offsets": _int64([2], [0, 4])}]}),
            _at(
                "offsets_invalid",
                "offsets[1] = 4, but bag 1 begins no earlier than the one before and no later than the 3 indices end",
                "/features/0/offsets/values/1",
                LOOKUP_RULES["offsets_invalid"],
                hint="Send an offset from 0 to 3 at /features/0/offsets/values/1, since bag 1 begins no earlier than "
                "the one before and no later than the 3 indices end.",
                position=(1,),
                value=4,
                allowed=(0, 3),
            ),
            ITEMS,
        ),
        "feature_mismatch": _made(
            _curl(path_of(LOOKUP), {"features": [_ITEMS_BAGS, {"tensor": "items", "indices": _int64([1], [0])}]}),
            _at(
                "feature_mismatch",
                "the output of the tensor 'items' is of 1 rows, and that of the first of 2: they cannot be joined on "
                "axis 1",
                "/features/1",
            ),
            ITEMS,
        ),
        "device_unavailable": _made(
            _gather({**_ONE, "device": "gpu"}),
            _at(
                "device_unavailable",
                "this service uses no GPU (GATHERND_DEVICE=cpu); use device auto or cpu",
                "/device",
            ),
            "The service has `GATHERND_DEVICE=cpu`, or runs on a machine without a GPU.",
        ),
        "overloaded": _made(
            _gather(_ONE),
            _limited("overloaded", "1024 requests are under way, as many as may be", "requests", 1024, retry_after=1),
            "More requests are under way than the service has room for.",
        ),
        "not_ready": _made(
            _gather(_ONE),
            GatherError("not_ready", "the service is starting and waits for: kernels", retry_after=1),
            "The service has been started a moment ago.",
        ),
        "deadline_exceeded": _made(
            _curl(_GATHERND, _ONE, "-H 'X-Gathernd-Timeout: 0.001'"),
            GatherError("deadline_exceeded", "the request waited until its deadline had passed", retry_after=1),
            "All threads are busy with other requests.",
        ),
        "shard_unavailable": _made(
            _gather({"data": {"tensor": "items"}, "indices": _int64([1, 1], [7])}),
            GatherError(
                "shard_unavailable",
                "no replica of rows 5 to 9 of 'items@1' answers",
                places=[Place("/indices/values/0", (0, 0), 7)],
                facts={"ranges": [{"tensor": "items@1", "start": 5, "stop": 10}]},
                retry_after=1,
            ),
            "The service is started with `--cluster`, the map has `items` in two ranges of five rows, and the services "
            "that have the second one are gone.",
        ),
        "not_implemented": _made(
            f"{_curl(path_of('systemSharedMemoryRegister', region='x'))} -X POST",
            GatherError("not_implemented", "shared memory is not offered here; send the tensors in the request"),
        ),
        "import_failed": _made(
            _curl(path_of("importTensor", name="items"), {"url": f"{IMPORTED}items.npy"}),
            import_failed(f"{IMPORTED}items.npy", "the file could not be opened: No such file or directory"),
            f"The service allows imports from `{IMPORTED}`, and there is no such file.",
        ),
        "tensor_damaged": _made(
            _gather({"data": {"tensor": "items"}, "indices": _int64([1, 1], [0])}),
            damaged("items", "its checksums or its log do not match"),
            "Another program has written into the file of the tensor `items`.",
        ),
        "insufficient_storage": _made(
            f"printf abc | curl -s '{ADDRESS}{path_of('putTensor', name='letters')}?dtype=uint8&shape=3' "
            "-X PUT -H 'Content-Type: application/octet-stream' --data-binary @-",
            over_quota("tensors", 1),
            "The service has the tensor `items`, and `GATHERND_MAX_TENSORS` is 1.",
        ),
        "internal": _made(
            _gather(_ONE),
            GatherError("internal", "the service failed; its log has the request_id"),
            "A defect of the service; no request is known that makes it fail.",
        ),
    }
    for code, (operator, sent, answer) in examples.ERRORS.items():
        if code not in own:
            command = _curl(path_of(OPERATORS[operator].operation), sent)
            own[answer["code"]] = Example(command, {**answer, "request_id": REQUEST_ID})
    return {code: own[code] for code in CODES}


@lru_cache(1)
def error_examples() -> Mapping[Code, Example]:
    """The example of each code."""
    return _examples()
