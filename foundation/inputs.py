"""What a checkpoint's model reads of a log: histories of its length and, where it was trained on them, aggregates."""

import numpy as np

from events.aggregates import aggregate_features
from foundation.batch import BatchSource
from foundation.log_tensors import LogTensors
from foundation.quantiles import Quantiles


def source_of(
    tensors: LogTensors,
    events: np.ndarray,
    *,
    history_length: int,
    quantiles: Quantiles | None,
) -> BatchSource:
    """Batches of these events (numbered as in LogTensors); `quantiles` scale their aggregates, None: no aggregates."""
    aggregates = None
    if quantiles is not None:
        aggregates = quantiles.transform(aggregate_features(tensors.log, events).values)
    return BatchSource(tensors, events, history_length=history_length, aggregates=aggregates)


def fitted_quantiles(tensors: LogTensors, events: np.ndarray) -> Quantiles:
    """Knots of the aggregates of the events that train."""
    return Quantiles.fit(aggregate_features(tensors.log, events).values)
