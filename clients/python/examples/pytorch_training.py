"""Train a PyTorch model whose embedding is a resident table.

The table is never downloaded. The forward pass looks up the rows of the batch. The backward pass sends their gradients
and gets one row per distinct id, already multiplied by the learning rate, which a scatter adds to the table. For
comparison, the same model is trained with torch.nn.Embedding; both learn the same.

Requires torch and the client. GATHERND_URL is the service's URL (default http://127.0.0.1:8080).
"""

from __future__ import annotations

from typing import Any

import torch

from gathernd import Client

LEARNING_RATE = 0.5
WORDS, WIDTH, CLASSES = 10_000, 16, 4


class Lookup(torch.autograd.Function):  # type: ignore[misc]
    """Look up rows of a resident table. Their gradients update the table immediately; `ids` get no gradient."""

    @staticmethod
    def forward(context: Any, client: Client, table: str, ids: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        context.service = client, table
        context.save_for_backward(ids)
        return client.gather(table, ids, as_torch=True)

    @staticmethod
    def backward(context: Any, grad_output: torch.Tensor) -> tuple[None, None, None, None]:
        client, table = context.service
        (ids,) = context.saved_tensors
        step = client.gather_backward(ids, grad_output, tensor=table, lda_coeff=-LEARNING_RATE, sparse=True)
        client.scatter(table, step.indices[:, None], step.values, "add")
        return None, None, None, None


class ResidentEmbedding(torch.nn.Module):  # type: ignore[misc]
    """torch.nn.Embedding whose weights are the resident tensor `table`."""

    def __init__(self, client: Client, table: str) -> None:
        super().__init__()
        self.client, self.table = client, table
        # Autograd only runs backward to a trained tensor; this one represents the table.
        self.anchor = torch.nn.Parameter(torch.empty(0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return Lookup.apply(self.client, self.table, ids, self.anchor)


def train(embedding: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """Train with one batch per step. Returns the loss of each batch."""
    torch.manual_seed(2)
    head = torch.nn.Linear(WIDTH, CLASSES)
    optimizer = torch.optim.SGD([*embedding.parameters(), *head.parameters()], lr=LEARNING_RATE)
    losses = []
    for ids, labels in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(head(embedding(ids).mean(dim=1)), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(1)
local = torch.nn.Embedding(WORDS, WIDTH)
labels = torch.randint(CLASSES, (32,))
# Words repeat within a batch and in every batch. The first word of a text determines its class.
texts = torch.randint(20, (32, 8))
texts[:, 0] = 20 + labels
batches = [(texts, labels)] * 40

with Client() as client:
    client.put("embedding", local.weight)
    remote = train(ResidentEmbedding(client, "embedding"), batches)
    expected = train(local, batches)
    torch.testing.assert_close(torch.tensor(remote), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(client.get("embedding", as_torch=True), local.weight.detach(), rtol=1e-4, atol=1e-5)
    print(f"{len(remote)} steps: loss {remote[0]:.2f} to {remote[-1]:.2f}, as with torch.nn.Embedding")
    client.delete("embedding")
