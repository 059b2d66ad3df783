"""Errors for tables with a key column, and for requests that select rows by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from app.errors.error_row import ErrorRow, Example

KeyCode = Literal["no_keys", "key_not_found", "keys_not_unique"]

ROWS: Final[Mapping[KeyCode, ErrorRow]] = {
    "no_keys": ErrorRow(
        "No keys",
        grpc_status="FAILED_PRECONDITION",
        meaning=(
            "The request selects rows by key, but the table has no key column, so its rows can be selected only by "
            "position."
        ),
        fix=(
            "Send positions in `indices`, or upload the table with its keys: a safetensors body with `keys` and `data`."
        ),
        hints=("Send positions in 'indices' in place of 'keys', or upload the table with its keys.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gather -H 'Content-Type: application/json' -d '{
  "data": {"tensor": "items"}, "keys": {"dtype": "int64", "shape": [1], "values": [1001]}}'""",
            "'items' has no key column",
            members={"errors": [{"pointer": "/data/tensor"}]},
            about="The service has the resident tensor `items`, float32 of shape [3, 2], without keys.",
        ),
    ),
    "key_not_found": ErrorRow(
        "Key not found",
        grpc_status="NOT_FOUND",
        meaning=(
            "At least one of the requested keys is not in the table. `total` counts all missing keys; `errors` lists "
            "the first ten in row-major order."
        ),
        fix=(
            "Leave the keys out, or set `missing` to say what to return for them: fill returns rows of `fill_value`, "
            "and row returns the row given in `missing_row`. `found` says which keys the table has."
        ),
        hints=(
            "Leave out the key at {pointer}, or send 'missing': 'fill' to get a row of zeros for each missing key.",
            "Leave out the missing keys, or send 'missing': 'fill' to get a row of zeros for each.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gather -H 'Content-Type: application/json' -d '{
  "data": {"tensor": "users"}, "keys": {"dtype": "int64", "shape": [3], "values": [1001, 7, 8]}}'""",
            "keys[1] = 7 is not a key of 'users', and 1 more",
            members={
                "errors": [
                    {"pointer": "/keys/values/1", "position": [1], "value": 7},
                    {"pointer": "/keys/values/2", "position": [2], "value": 8},
                ],
                "total": 2,
            },
            about="The service has the resident tensor `users`, whose keys are 1001, 1002 and 1003.",
        ),
    ),
    "keys_not_unique": ErrorRow(
        "Keys not unique",
        meaning=(
            "A key column contains a key more than once. `total` counts all repetitions; `errors` lists the first ten "
            "positions that repeat an earlier key."
        ),
        fix="Give each row its own key: remove the repeated rows, or merge them.",
        hints=(
            "Remove the row at {pointer}, or give it a key that no other row has.",
            "Give each row a key that no other row has.",
        ),
        example=Example(
            """python3 -c '
import json, struct, sys
head = json.dumps({"keys": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
                   "data": {"dtype": "F32", "shape": [2, 1], "data_offsets": [16, 24]}}).encode()
sys.stdout.buffer.write(struct.pack("<Q", len(head)) + head + struct.pack("<qqff", 7, 7, 1, 2))' |
curl -s http://127.0.0.1:8080/tensors/items -X PUT -H 'Content-Type: application/x-safetensors' --data-binary @-""",
            "keys[1] = 7 is also the key of another row",
            members={"errors": [{"pointer": "/keys", "position": [1], "value": 7}], "total": 1},
        ),
    ),
}
