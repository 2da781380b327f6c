"""One pass over rows in time order, in many small steps; every step is a function of the state and its number.

Legend: n rows, B batch, K tasks.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from contracts.errors import GemError
from foundation.batch import BatchSource
from foundation.bucketing import Padding, bucketed_order, padding_share
from foundation.flops import count_flops
from foundation.gem import load_weights
from foundation.loss import members_loss, task_losses
from foundation.mixing import Mixing, belonging
from foundation.optimizer import GemOptimizer, rate_at
from foundation.predict import on
from foundation.progress import Running
from foundation.recipes import TrainRecipe
from foundation.targets import Targets


class Trainer:
    """Takes step 0 .. steps - 1 over the batches of the source; the caller decides where to begin and save.

    The model is any module with `forward(batch, *, user_dropout, ad_dropout)`, whose output has `logits_BK`, and
    `auxiliary_loss(output)`. It must stand on its device already and not be moved: the optimiser holds its weights.
    `mixing` replaces the draws that the recipe asks for. `running` has loss and NE over the newest steps, `padding`
    what bucketing saves, where the recipe asks for it.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: TrainRecipe,
        source: BatchSource,
        targets: Targets,
        *,
        seed: int,
        continued: bool = False,
        mixing: Mixing | None = None,
    ) -> None:
        self.model = model
        self.optimizer = GemOptimizer(model, recipe)
        self.steps = math.ceil(len(source) / recipe.batch_rows)
        self.mixing = mixing or _mixing(recipe, source, targets, seed=seed)
        self.running = Running()
        self._forward: Callable[..., Any] = compiled(model) if recipe.compile else model
        self._device = next(model.parameters()).device
        self._recipe, self._source, self._targets, self._seed = recipe, source, targets, seed
        self._scale = recipe.continued_rate if continued else 1.0
        self._order_n = torch.arange(len(source)) if self.mixing is None else self.mixing.position_n
        self._weight_n = None if self.mixing is None else self.mixing.weight_n
        self.padding: Padding | None = None
        if recipe.bucketing_batches:
            length_n = source.length_n[self._order_n]
            place_n = bucketed_order(length_n, batch_rows=recipe.batch_rows, window_batches=recipe.bucketing_batches)
            self.padding = Padding(
                padding_share(length_n, torch.arange(len(length_n)), batch_rows=recipe.batch_rows),
                padding_share(length_n, place_n, batch_rows=recipe.batch_rows),
            )
            self._order_n = self._order_n[place_n]
            self._weight_n = None if self._weight_n is None else self._weight_n[place_n]

    def positions(self, step: int) -> Tensor:
        """Rows of the source that a step learns from, int64 [B]."""
        return self._order_n[step * self._recipe.batch_rows : (step + 1) * self._recipe.batch_rows]

    def step(self, step: int) -> float:
        """Takes one step and returns its task loss per row.

        Random numbers follow from (seed, step) alone, so that a resumed run takes the steps an uninterrupted one takes.
        Raises GemError when the loss is not finite, before the model is touched.
        """
        recipe, size = self._recipe, self._recipe.batch_rows
        _seed((self._seed << 32) + step + 1)
        positions = self.positions(step)
        label_BK, counts_BK = self._targets.label_nK[positions], self._targets.counts_nK[positions]
        weight_B = None if self._weight_n is None else self._weight_n[step * size : (step + 1) * size]
        batch = on(self._source.batch(positions), self._device)
        if not self.model.training:
            self.model.train()
        with self._autocast():
            output = self._forward(batch, user_dropout=recipe.user_dropout, ad_dropout=recipe.ad_dropout)
        told = (
            label_BK.to(self._device),
            counts_BK.to(self._device),
            None if weight_B is None else weight_B.to(self._device),
        )
        losses_BK = task_losses(output.logits_BK, *told)
        loss = losses_BK.sum() / len(positions)
        members_MBK = getattr(output, "members_MBK", None)
        learned = loss if members_MBK is None else members_loss(members_MBK, *told)
        value = _finite(loss, step)  # before the compressor takes the activations into its statistics
        total = learned + self.model.auxiliary_loss(output)  # type: ignore[operator]
        _finite(total, step)
        rate = rate_at(
            step, steps=self.steps, warmup=recipe.warmup_steps, final=recipe.final_rate, schedule=recipe.schedule
        )
        self.optimizer.step(total, rate=self._scale * rate)
        self.running.add(losses_BK.detach().cpu(), label_BK, counts_BK, weight_B)
        return value

    def forward_flops(self) -> float:
        """FLOPs of one example's forward pass, from the batch in the middle of the pass."""
        positions = self.positions(self.steps // 2)
        batch = on(self._source.batch(positions), self._device)
        self.model.eval()  # the next step trains again
        return count_flops(self.model, batch) / len(positions)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(weights and running statistics, moments of the optimiser) by name."""
        return self.model.state_dict(), self.optimizer.state()

    def load(self, weights: dict[str, Tensor], moments: dict[str, Tensor]) -> None:
        """Inverse of `state`; InputError when the weights belong to another version of the model."""
        load_weights(self.model, weights)
        self.optimizer.load(moments)

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        if self._recipe.precision == "fp32":
            yield
            return
        with warnings.catch_warnings(), torch.autocast(self._device.type, dtype=torch.bfloat16):
            # RMSNorm keeps float32 weights; torch warns that its fused form on a CPU cannot
            warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
            yield


def compiled(model: nn.Module, **options: Any) -> Callable[..., Any]:
    """The model's forward as torch.compile makes it, the look-ups of sparse tables left out of its graphs: the compiler
    cannot hold sparse gradients. The model's weights stay where they are."""
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.sparse:
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    forward: Callable[..., Any] = torch.compile(model, dynamic=True, **options)
    return forward


def _mixing(recipe: TrainRecipe, source: BatchSource, targets: Targets, *, seed: int) -> Mixing | None:
    if recipe.mixing_temperature == 1:
        return None
    belongs_nK = belonging(targets.label_nK.numpy(), targets.counts_nK.numpy(), recipe.mixing_cells)
    temperature, window = recipe.mixing_temperature, recipe.mixing_window
    return Mixing.of(source.surface_n.numpy(), belongs_nK, temperature=temperature, window=window, seed=seed)


def _seed(seed: int) -> None:
    """`torch.manual_seed` without its search for devices, a third of a millisecond a step."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def _finite(loss: Tensor, step: int) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise GemError(
            f"the loss of step {step + 1} is not finite: look for features out of range or lower the recipe's rate"
        )
    return value
