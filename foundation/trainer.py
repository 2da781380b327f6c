"""One pass over rows in time order, in many small steps; every step is a function of the state and its number.

Legend: n rows, B batch, K tasks.
"""

import math

import torch
from torch import Tensor

from contracts.errors import GemError
from foundation.batch import BatchSource
from foundation.gem import Gem, load_weights
from foundation.loss import task_loss
from foundation.optimizer import GemOptimizer, linear_rate
from foundation.recipes import TrainRecipe
from foundation.targets import Targets


class Trainer:
    """Takes step 0 .. steps - 1 over consecutive batches of the source; the caller decides where to begin and save."""

    def __init__(
        self,
        model: Gem,
        recipe: TrainRecipe,
        source: BatchSource,
        targets: Targets,
        *,
        seed: int,
        continued: bool = False,
    ) -> None:
        self.model = model
        self.optimizer = GemOptimizer(model, recipe)
        self.steps = math.ceil(len(source) / recipe.batch_rows)
        self._recipe, self._source, self._targets, self._seed = recipe, source, targets, seed
        self._scale = recipe.continued_rate if continued else 1.0

    def step(self, step: int) -> float:
        """Takes one step and returns its task loss per row.

        Random numbers follow from (seed, step) alone, so that a resumed run takes the steps an uninterrupted one takes.
        Raises GemError when the loss is not finite, before the model is touched.
        """
        recipe = self._recipe
        torch.manual_seed((self._seed << 32) + step + 1)
        positions = torch.arange(step * recipe.batch_rows, min((step + 1) * recipe.batch_rows, len(self._source)))
        batch = self._source.batch(positions)
        self.model.train()
        output = self.model(batch, user_dropout=recipe.user_dropout, ad_dropout=recipe.ad_dropout)
        loss = task_loss(output.logits_BK, self._targets.label_nK[positions], self._targets.counts_nK[positions])
        _check_finite(loss, step)  # before the compressor takes the activations into its statistics
        total = loss + self.model.compressor.loss(output.activations_BE)
        _check_finite(total, step)
        rate = linear_rate(step, steps=self.steps, warmup=recipe.warmup_steps, final=recipe.final_rate)
        self.optimizer.step(total, rate=self._scale * rate)
        return float(loss.detach())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(weights and running statistics, moments of the optimiser) by name."""
        return self.model.state_dict(), self.optimizer.state()

    def load(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """Inverse of `state`."""
        load_weights(self.model, weights)
        self.optimizer.load(moments)


def _check_finite(loss: Tensor, step: int) -> None:
    if not math.isfinite(float(loss.detach())):
        raise GemError(
            f"the loss of step {step + 1} is not finite: look for features out of range or lower the recipe's rate"
        )
