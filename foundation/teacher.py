"""The teacher as others see it: a checkpoint that turns impressions into soft labels and z.

Legend: n rows, K tasks, Z = 64 the width of z.
"""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from contracts.schema import FeatureSchema
from events.history import HistoryIndex
from events.log import InteractionLog
from foundation.batch import BatchSource
from foundation.checkpoint import Checkpoint, check_schema, read_info, read_model, write_checkpoint
from foundation.config import REPRESENTATION_DIM
from foundation.gem import Gem, load_weights
from foundation.inputs import source_of
from foundation.layout import InputLayout
from foundation.log_tensors import LogTensors
from foundation.predict import outputs
from foundation.quantiles import Quantiles


@dataclass(frozen=True)
class Representation:
    """soft float32 [n, K]: probability of each task given its parent's positive label; z float32 [n, 64] in [-1, 1]."""

    soft: np.ndarray
    z: np.ndarray


class Teacher:
    """GEM in evaluation mode. Its outputs for a row depend on the row and its user's past, never on its labels."""

    def __init__(self, model: Gem, info: Checkpoint) -> None:
        self.model = model.eval()
        self._tensors: LogTensors | None = None
        self._quantiles = None if info.quantiles is None else Quantiles.from_json(info.quantiles)
        self.info = info

    @classmethod
    def load(cls, path: Path | str) -> "Teacher":
        """From a finished checkpoint; InputError when it is missing, unfinished, damaged or of another version."""
        folder = Path(path)
        info = read_info(folder)
        model = Gem(InputLayout(info.schema), info.recipe.model)
        load_weights(model, read_model(folder))
        return cls(model, info)

    def with_model(self, model: Gem, *, seed: int) -> "Teacher":
        """The teacher of the same training whose model makes another z, from weights that `seed` drew: `run` is that of
        the new weights, `parent` this one's."""
        recipe = replace(self.info.recipe, model=model.config)
        digest = sha256(save({name: value.contiguous() for name, value in model.state_dict().items()})).hexdigest()
        return Teacher(model, replace(self.info, run=digest, moments="", recipe=recipe, parent=self.run, seed=seed))

    def write(self, folder: Path, moments: dict[str, Tensor]) -> Checkpoint:
        """A finished checkpoint of this teacher and of an optimiser's moments, for those who train on."""
        return write_checkpoint(folder, self.model.state_dict(), moments, self.info)

    @property
    def run(self) -> str:
        """sha256 of the weights, hex: what names an embedding space."""
        return self.info.run

    @property
    def schema(self) -> FeatureSchema:
        return self.info.schema

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task.name for task in self.schema.tasks)

    @property
    def dim(self) -> int:
        return REPRESENTATION_DIM

    @property
    def trained_until_ms(self) -> int:
        """Events before this time may have trained the teacher; it never represents them (leak guard 1)."""
        return self.info.trained_until_ms

    @torch.inference_mode()
    def represent(
        self, log: InteractionLog, rows: np.ndarray, *, histories: HistoryIndex | None = None
    ) -> Representation:
        """Soft labels and z of rows [n] of the log (row numbers), in their order.

        Rows are batched by the length of their history; padding is masked, so batches do not change a row's outputs
        beyond rounding. `histories` may be passed if the caller has it. InputError for a log of another schema.
        """
        source = self.source(log, rows, histories=histories)
        soft = np.zeros((len(rows), len(self.tasks)), dtype=np.float32)
        z = np.zeros((len(rows), self.dim), dtype=np.float32)
        for positions, output in outputs(self.model, source):
            soft[positions] = torch.sigmoid(output.logits_BK).numpy()
            z[positions] = self.model.compressor(output.activations_BE).numpy()
        return Representation(soft, z)

    def source(self, log: InteractionLog, rows: np.ndarray, *, histories: HistoryIndex | None = None) -> BatchSource:
        """Batches of what the model reads of rows [n] of the log, by position. InputError for a log of another schema.

        The log's tensors are kept for the next call on the same log.
        """
        check_schema(self.info, log.schema, source="represent")
        if self._tensors is None or self._tensors.log is not log:
            self._tensors = LogTensors(log, histories)
        length = self.model.config.history_length
        return source_of(self._tensors, rows, history_length=length, quantiles=self._quantiles)
