"""Outputs of any model for the rows of a source.

Legend: n rows, B batch, K tasks.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foundation.batch import BatchSource, GemBatch

ROWS_PER_BATCH = 512


def outputs(
    model: nn.Module, source: BatchSource, *, rows_per_batch: int = ROWS_PER_BATCH
) -> Iterator[tuple[Tensor, Any]]:
    """(positions int64 [B], the model's output for them) over all rows, in evaluation mode and without gradients.

    Rows are batched by the length of their history; padding is masked, so batches do not change a row's outputs beyond
    rounding. The model's mode is restored at the end.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        for positions in torch.argsort(source.length_n, stable=True).split(rows_per_batch):
            with torch.inference_mode():
                output = model(on(source.batch(positions), device))
            yield positions, output
    finally:
        model.train(training)


def predict(model: nn.Module, source: BatchSource, *, rows_per_batch: int = ROWS_PER_BATCH) -> np.ndarray:
    """Probability of each task given its parent's positive label: float32 [n, K], in the source's order."""
    parts: list[Tensor] = []
    order: list[Tensor] = []
    for positions, output in outputs(model, source, rows_per_batch=rows_per_batch):
        parts.append(torch.sigmoid(output.logits_BK.float()).cpu())
        order.append(positions)
    p_nK = torch.empty(len(source), parts[0].shape[1])
    p_nK[torch.cat(order)] = torch.cat(parts)
    return p_nK.numpy()


def on(batch: GemBatch, device: torch.device) -> GemBatch:
    """The batch on a device; itself where it is there."""
    if batch.mask_BT.device == device:
        return batch
    return GemBatch(**{name: value.to(device, non_blocking=True) for name, value in vars(batch).items()})
