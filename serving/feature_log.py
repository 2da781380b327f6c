"""The feature log: exact model inputs, versions and scores of a sampled share of requests, as Parquet.

One row per request. A tensor stands flattened in `input_<name>`, and its shape but for the first axis in the file's
metadata (`tensors`), so `reshape(-1, *shape)` gives it back bit for bit; probabilities are [N, tasks], flattened too.
Users stand as the stable hash of their id.
"""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import InputError
from contracts.hashing import stable_hash
from serving.artifact import Model
from serving.ranker import Ranked

ROWS_PER_FILE = 500
log = logging.getLogger(__name__)


class FeatureLog:
    """Keeps rows in memory and writes a file after `rows_per_file` of them and at the end.

    Writing takes milliseconds of the request that fills the buffer. A failed write loses its rows, is counted in
    `dropped` and never fails a request.
    """

    def __init__(
        self, folder: Path, *, rate: float, random: Callable[[], float], rows_per_file: int = ROWS_PER_FILE
    ) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"GEM_FEATURE_LOG: {folder} cannot be made ({error.strerror})") from error
        if not os.access(folder, os.W_OK):
            raise InputError(f"GEM_FEATURE_LOG: {folder} cannot be written; change its owner or take another")
        self._folder, self._rate, self._random, self._rows_per_file = folder, rate, random, rows_per_file
        self._rows: dict[str, list[Ranked]] = {}
        # neither clock nor process id tells two runs apart: requests bring the one, a container repeats the other
        self._run, self._files = os.urandom(6).hex(), 0
        self.written = self.dropped = 0

    def offer(self, ranked: Ranked) -> None:
        """Keep this request, at the sampling rate."""
        if self._random() >= self._rate:
            return
        rows = self._rows.setdefault(ranked.model.label, [])
        rows.append(ranked)
        if len(rows) >= self._rows_per_file:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered: one file for each model, by an atomic rename."""
        kept, self._rows = self._rows, {}
        for rows in kept.values():
            try:
                self._write(rows)
                self.written += len(rows)
            except (OSError, pa.ArrowException) as error:
                self.dropped += len(rows)
                log.error("feature log: %d rows lost: %s", len(rows), error)

    def _write(self, rows: list[Ranked]) -> None:
        model = rows[0].model
        self._files += 1
        name = f"{model.manifest.name}-{model.manifest.version}-{rows[0].now_ms}-{self._run}-{self._files}.parquet"
        partial = self._folder / f".{name}.tmp"
        pq.write_table(_table(rows, model), partial)
        os.replace(partial, self._folder / name)


def _table(rows: list[Ranked], model: Model) -> pa.Table:
    tensors = model.spec.tensors()
    embeddings = [row.response.embedding for row in rows]
    columns: dict[str, pa.Array] = {
        "request_id": pa.array([row.response.request_id for row in rows], pa.string()),
        "timestamp_ms": pa.array([row.now_ms for row in rows], pa.int64()),
        "user_hash": pa.array([stable_hash(row.user_id) for row in rows], pa.uint64()),
        "surface": pa.array([row.response.surface for row in rows], pa.string()),
        "model": pa.array([model.manifest.name] * len(rows), pa.string()),
        "version": pa.array([model.manifest.version] * len(rows), pa.string()),
        "space": pa.array([model.manifest.space] * len(rows), pa.string()),
        "generation": pa.array([embedding.generation for embedding in embeddings], pa.string()),
        "embedding_status": pa.array([embedding.status for embedding in embeddings], pa.string()),
        "catalogue": pa.array([row.catalogue_version for row in rows], pa.string()),
        "ad_ids": pa.array([row.ad_ids for row in rows], pa.list_(pa.string())),
        "probabilities": pa.array([row.probabilities.ravel() for row in rows], pa.list_(pa.float32())),
        "scores": pa.array([row.scores for row in rows], pa.list_(pa.float64())),
    }
    for tensor in tensors:
        kind = pa.list_(pa.from_numpy_dtype(tensor.dtype))
        columns[f"input_{tensor.name}"] = pa.array([row.inputs[tensor.name].ravel() for row in rows], kind)
    metadata = {
        "tensors": json.dumps({tensor.name: tensor.shape[1:] for tensor in tensors}),
        "tasks": json.dumps(model.manifest.tasks),
        "gem_schema_fingerprint": model.manifest.schema_fingerprint,
    }
    return pa.table(columns).replace_schema_metadata(metadata)
