"""Look rows up with Triton's own client: a resident tensor is a model with the one input `indices`.

Requires tritonclient[http], and the client for the upload. GATHERND_URL is the service's URL (default http://127.0.0.1:8080).
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from gathernd import Client

table = np.arange(40, dtype=np.float32).reshape(10, 4)
wanted = np.array([[5], [7]])

with Client() as client:
    client.put("items", table)

triton = InferenceServerClient(urlsplit(os.environ.get("GATHERND_URL", "http://127.0.0.1:8080")).netloc)
assert triton.is_server_ready()
assert triton.is_model_ready("items")

# The lookup, with binary tensors in both directions.
indices = InferInput("indices", list(wanted.shape), "INT64")
indices.set_data_from_numpy(wanted, binary_data=True)
answer = triton.infer("items", [indices], outputs=[InferRequestedOutput("output", binary_data=True)])
rows = answer.as_numpy("output")
assert np.array_equal(rows, table[wanted[:, 0]])

# The operator itself, with data in the request.
data = InferInput("data", [2, 2], "FP32")
data.set_data_from_numpy(np.array([[0, 1], [2, 3]], np.float32))
pairs = InferInput("indices", [2, 2], "INT64")
pairs.set_data_from_numpy(np.array([[0, 0], [1, 1]]))
assert triton.infer("gathernd", [data, pairs]).as_numpy("output").tolist() == [0, 3]

print(f"rows 5 and 7 of {triton.get_model_metadata('items')['name']}: {rows.tolist()}")
triton.close()
