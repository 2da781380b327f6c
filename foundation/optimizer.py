"""Three optimisers as one: AdamW for the dense parameters, lazy Adam for the embedding table, Adagrad for the
first-order weights.

A dense Adam step would touch every row of a table; SparseAdam and Adagrad touch the rows of the batch. Adagrad gives a
weight of a rare value large steps, which first-order terms need and embeddings do not bear.
"""

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from foundation.recipes import TrainRecipe

GRADIENT_NORM = 5.0
"""Clip of the dense gradient; only outliers reach it."""


class GemOptimizer:
    """Steps all parameters of a GEM; its state is a flat dictionary of tensors that a checkpoint can hold."""

    def __init__(self, model: nn.Module, recipe: TrainRecipe) -> None:
        named = dict(model.named_parameters())
        tables = {name: p for name, p in named.items() if name.endswith("tokens.table.weight")}
        first_order = {name: p for name, p in named.items() if name.endswith("first_order.table.weight")}
        compressor = {name: p for name, p in named.items() if name.startswith("compressor.")}
        dense = {name: p for name, p in named.items() if name not in {*tables, *first_order, *compressor}}
        self._dense = list(dense.values())
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named.items()}
        self._rates = (recipe.dense_rate, recipe.compressor_rate, recipe.table_rate, recipe.first_order_rate)
        groups = [
            {"params": list(dense.values()), "lr": recipe.dense_rate, "weight_decay": recipe.weight_decay},
            {"params": list(compressor.values()), "lr": recipe.compressor_rate, "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, fused=True)
        self._sparse = torch.optim.SparseAdam(list(tables.values()), lr=recipe.table_rate)
        self._adagrad = torch.optim.Adagrad(list(first_order.values()), lr=recipe.first_order_rate)
        self._all = (self._adam, self._sparse, self._adagrad)

    def step(self, loss: Tensor, *, rate: float) -> None:
        """One update by the gradient of `loss`, at `rate` times each group's own rate."""
        for optimiser in self._all:
            optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self._dense, GRADIENT_NORM)
        groups = [group for optimiser in self._all for group in optimiser.param_groups]
        for group, own in zip(groups, self._rates, strict=True):
            group["lr"] = rate * own
        with torch.sparse.check_sparse_tensor_invariants(False):  # the checks cost; leaving them unset warns
            for optimiser in self._all:
                optimiser.step()

    def state(self) -> dict[str, Tensor]:
        """Every moment and step count as "<moment>:<parameter>"."""
        tensors = {}
        for optimiser in self._all:
            for parameter, moments in optimiser.state.items():
                for moment, value in moments.items():
                    value = value if isinstance(value, Tensor) else torch.tensor(float(value))
                    tensors[f"{moment}:{self._names[parameter]}"] = value.contiguous()
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `state`; InputError when a tensor belongs to no parameter."""
        parameters = {name: parameter for parameter, name in self._names.items()}
        home = {p: optimiser for optimiser in self._all for group in optimiser.param_groups for p in group["params"]}
        for key, value in tensors.items():
            moment, _, name = key.partition(":")
            if name not in parameters:
                raise InputError(f"the optimiser's state names {name!r}, which the model lacks; train from the start")
            parameter = parameters[name]
            optimiser = home[parameter]
            counts = optimiser is self._sparse and moment == "step"  # SparseAdam counts in a plain integer
            optimiser.state[parameter][moment] = int(value) if counts else value.clone()


def linear_rate(step: int, *, steps: int, warmup: int, final: float) -> float:
    """Factor of step 0 .. steps - 1: up to 1 over `warmup` steps, then down to `final` by the last step."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return final + (1 - final) * (1 - (step - warmup) / max(1, steps - warmup))
