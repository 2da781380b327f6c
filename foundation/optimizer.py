"""Separate optimisers as one: AdamW for the dense parameters; lazy Adam or row-wise Adagrad for the embedding table,
and Adagrad for the first-order weights.

A dense Adam step would touch every row of a table; these touch the rows of the batch. Adagrad gives a weight of a rare
value large steps, which first-order terms need and embeddings do not bear.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from contracts.errors import InputError
from foundation.recipes import Schedule, TrainRecipe
from foundation.table_optimizers import LazyAdam, RowAdagrad

TABLE, FIRST_ORDER, COMPRESSOR = "tokens.table.weight", "first_order.table.weight", "compressor."
"""How the names of a model's parameters end, or begin, that are not simply dense."""


class Flat:
    """Parameters laid one behind the other in one tensor, of which they become views: one update, one norm.

    Many small parameters cost more in calls than in arithmetic. The model must not be moved or cast afterwards.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self.parameters = parameters
        self.whole = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters.values()]))
        for parameter, part in zip(parameters.values(), self.parts(self.whole.detach()).values(), strict=True):
            parameter.data = part

    def parts(self, whole: Tensor) -> dict[str, Tensor]:
        """By name, views of a tensor of this length, shaped as the parameters."""
        pieces = whole.split([p.numel() for p in self.parameters.values()])
        shaped = zip(self.parameters.items(), pieces, strict=True)
        return {name: piece.view(parameter.shape) for (name, parameter), piece in shaped}

    def gather(self) -> None:
        """Takes the parameters' gradients; one that has none counts as zero."""
        gradients = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in self.parameters.values()]
        self.whole.grad = torch.cat(gradients)


class GemOptimizer:
    """Steps all parameters of a model; its state is a flat dictionary of tensors that a checkpoint can hold.

    Tables go by their names, the compressor has a rate of its own, all others are dense; a model may lack any of them.
    """

    def __init__(self, model: nn.Module, recipe: TrainRecipe) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        table = {name: p for name, p in named.items() if name.endswith(TABLE)}
        first_order = {name: p for name, p in named.items() if name.endswith(FIRST_ORDER)}
        compressor = {name: p for name, p in named.items() if name.startswith(COMPRESSOR)}
        dense = {name: p for name, p in named.items() if name not in {*table, *first_order, *compressor}}
        self._recipe, self._named = recipe, named
        self._dense, self._compressor = Flat(dense), Flat(compressor) if compressor else None
        groups: list[dict[str, Any]] = [{"params": [self._dense.whole], "weight_decay": recipe.weight_decay}]
        self._own_rates = [recipe.dense_rate]
        if self._compressor is not None:
            groups.append({"params": [self._compressor.whole], "weight_decay": 0.0})
            self._own_rates.append(recipe.compressor_rate)
        self._flats = [flat for flat in (self._dense, self._compressor) if flat is not None]
        self._adam = torch.optim.AdamW(groups, fused=True)
        self._table: LazyAdam | RowAdagrad
        if recipe.table_optimizer == "lazy_adam":
            self._table = LazyAdam(list(table.values()))
        else:
            self._table = RowAdagrad(list(table.values()), per_row=True)
        self._first_order = RowAdagrad(list(first_order.values()), per_row=False)

    def step(self, loss: Tensor, *, rate: float) -> None:
        """One update by the gradient of `loss`, at `rate` times each group's own rate."""
        for parameter in self._named.values():
            parameter.grad = None
        loss.backward()
        for flat in self._flats:
            flat.gather()
        if limit := self._recipe.gradient_norm:
            gradient = self._dense.whole.grad
            assert gradient is not None
            gradient.mul_((limit / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_(max=1.0))
        for group, own in zip(self._adam.param_groups, self._own_rates, strict=True):
            group["lr"] = rate * own
        self._adam.step()
        self._table.step(rate * self._recipe.table_rate)
        self._first_order.step(rate * self._recipe.first_order_rate)

    def state(self) -> dict[str, Tensor]:
        """Every moment and step count as "<moment>:<parameter>"."""
        tensors: dict[str, Tensor] = {}
        for flat in self._flats:
            for moment, whole in self._adam.state[flat.whole].items():
                parts = flat.parts(whole) if whole.dim() else dict.fromkeys(flat.parameters, whole)
                tensors |= {f"{moment}:{name}": part.clone() for name, part in parts.items()}
        names = {parameter: name for name, parameter in self._named.items()}
        for optimiser in (self._table, self._first_order):
            for table, moments in optimiser.state.items():
                tensors |= {f"{moment}:{names[table]}": value.clone() for moment, value in moments.items()}
        return tensors

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Inverse of `state`; InputError when a tensor belongs to no parameter or to another optimiser."""
        for key in tensors:
            if (name := key.partition(":")[2]) not in self._named:
                raise InputError(f"the optimiser's state names {name!r}, which the model lacks; train from the start")
        home = {name: flat for flat in self._flats for name in flat.parameters}
        for flat in self._flats:
            moments = {key.partition(":")[0] for key in tensors if home.get(key.partition(":")[2]) is flat}
            state = self._adam.state[flat.whole]
            for moment in moments:
                parts = [_of(tensors, moment, name) for name in flat.parameters]
                state[moment] = parts[0].clone() if moment == "step" else torch.cat([p.flatten() for p in parts])
                if moment != "step" and len(state[moment]) != len(flat.whole):
                    raise InputError(f"the optimiser's {moment} has another size than the model; train from the start")
        names = {parameter: name for name, parameter in self._named.items()}
        for optimiser in (self._table, self._first_order):
            for table, own in optimiser.state.items():
                for moment in own:
                    own[moment].copy_(_of(tensors, moment, names[table]))


def _of(tensors: dict[str, Tensor], moment: str, name: str) -> Tensor:
    if f"{moment}:{name}" not in tensors:
        raise InputError(f"the optimiser's state has no {moment!r} of {name!r}; continue with the recipe that made it")
    return tensors[f"{moment}:{name}"]


def rate_at(step: int, *, steps: int, warmup: int, final: float, schedule: Schedule) -> float:
    """Factor of step 0 .. steps - 1: up to 1 over `warmup` steps, then down to `final` by the last step."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    left = 1 - (step - warmup) / max(1, steps - warmup)
    return final + (1 - final) * (left if schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)
