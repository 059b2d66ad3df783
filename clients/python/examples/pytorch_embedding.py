"""Serve the table of a PyTorch embedding: upload its weights, look rows up, and update the rows that training changes.

Requires torch and the client. GATHERND_URL is the service's URL (default http://127.0.0.1:8080).
"""

from __future__ import annotations

import torch

from gathernd import Client

torch.manual_seed(1)
layer = torch.nn.Embedding(10_000, 64)
ids = torch.tensor([3, 14, 15, 92, 65])

with Client() as client:
    client.put("words", layer.weight)
    rows = client.gather("words", ids, as_torch=True)
    assert torch.equal(rows, layer(ids))

    # A training step changes a few rows; only those are sent.
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(ids).square().sum().backward()
    optimizer.step()
    client.scatter("words", ids[:, None], layer.weight[ids])
    assert torch.equal(client.gather("words", ids, as_torch=True), layer(ids))

    print(f"{len(ids)} rows of {layer.num_embeddings} served, changed and served again")
    client.delete("words")
