"""Train a PyTorch model whose embedding is a resident table: looked up, sent its gradient back, and updated in place.

The table is never here whole. Forward looks up the rows of the batch; backward sends their gradients and gets one row
for each distinct id, already times the learning rate; the update adds these to the table. Beside it the same model is
trained with torch.nn.Embedding, and both learn the same.

Needs torch beside the client. GATHERND_URL says where the service is, 127.0.0.1:8080 unless set.
"""

from __future__ import annotations

from typing import Any

import torch

from gathernd import Client

LEARNING_RATE = 0.5
WORDS, WIDTH, CLASSES = 10_000, 16, 4


class Lookup(torch.autograd.Function):  # type: ignore[misc]
    """Rows of a resident table. Their gradients go to the table, which learns at once: autograd gets none for `ids`."""

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
        # Autograd goes back only to what is trained: this stands for the table.
        self.anchor = torch.nn.Parameter(torch.empty(0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return Lookup.apply(self.client, self.table, ids, self.anchor)


def train(embedding: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """The loss of each batch, of which every step learns from one."""
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
# Words that come several times in a batch, and in every batch; the first word of a text tells its class.
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
