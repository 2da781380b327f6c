"""One timed case of the speed experiment, in a process of its own: prints its figures as one JSON line.

Legend: B batch, T tokens, F hidden width, H heads, d head width.
"""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from events.recipes import tiny
from events.world import make_world
from foundation import attention
from foundation.batch import GemBatch
from foundation.config import GemConfig
from foundation.flops import count_flops
from foundation.gem import Gem
from foundation.kernels import gdpa, gdpa_reference
from foundation.layout import InputLayout
from foundation.loss import task_losses
from foundation.mfu import TRAINING_FACTOR, peak_flops
from foundation.optimizer import GemOptimizer
from foundation.recipes import small

HEADS, HEAD_WIDTH, HIDDEN = 2, 64, 128
"""Shape of the operator cases: the head width of Kunlun's benchmarks, half their heads and hidden width."""
WARM_STEPS, STEPS = 2, 5


@dataclass(frozen=True)
class Case:
    """`kind` is "model" or "pffn_" and the variant; `rows` examples with `length` events each."""

    kind: str
    rows: int
    length: int
    model: dict[str, Any] | None = None
    precision: str = "fp32"
    compiled: bool = False
    masked: bool = False
    """Attention by a mask over all pairs, the reference, in place of the linear one."""


def main(raw: str) -> None:
    """Time the case that the JSON describes."""
    case = Case(**json.loads(raw))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    step, flops = _model_step(case, device) if case.kind == "model" else _operator_step(case, device)
    for _ in range(WARM_STEPS):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    times = []
    for _ in range(STEPS):
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    median_s, peak_mb = sorted(times)[len(times) // 2], _peak_mb(device)  # before the matmul that measures the peak
    dtype = torch.bfloat16 if case.precision == "bf16" else torch.float32
    told = {
        "step_ms": 1e3 * median_s,
        "examples_per_s": case.rows / median_s,
        "forward_flops": flops / case.rows,
        "mfu": TRAINING_FACTOR * flops / median_s / peak_flops(device, dtype),
        "peak_mb": peak_mb,
    }
    sys.stdout.write(json.dumps(told) + "\n")


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _operator_step(case: Case, device: torch.device) -> tuple[Callable[[], None], float]:
    """Forward and backward of the personalised FFN on its generated weights."""

    def drawn(tokens: int) -> Tensor:
        values = torch.randn(case.rows, tokens, HEADS, HEAD_WIDTH, device=device) * HEAD_WIDTH**-0.25
        return values.requires_grad_()

    operators: dict[str, Callable[..., Tensor]] = {
        "pffn_gdpa": gdpa,
        "pffn_unfused": unfused_ffn,
        "pffn_reference": gdpa_reference,
    }
    operator = operators[case.kind]
    q, k, v = drawn(case.length), drawn(HIDDEN), drawn(HIDDEN)

    def step() -> None:
        operator(q, k, v).square().mean().backward()
        for tensor in (q, k, v):
            tensor.grad = None

    return step, 4.0 * case.rows * case.length * HIDDEN * HEADS * HEAD_WIDTH


def unfused_ffn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The per-example FFN as InterFormer's production code has it: bmm, GELU, bmm, a head at a time. [B, T, H, d]."""
    heads = []
    for head in range(q.shape[2]):
        hidden = torch.bmm(q[:, :, head], k[:, :, head].transpose(1, 2))
        heads.append(torch.bmm(torch.nn.functional.gelu(hidden, approximate="tanh"), v[:, :, head]))
    return torch.stack(heads, dim=2)


def _model_step(case: Case, device: torch.device) -> tuple[Callable[[], None], float]:
    """One training step of GEM on random rows with full histories."""
    assert case.model is not None
    layout = InputLayout(make_world(tiny())[0].schema)
    config = GemConfig.from_json(case.model)
    model = Gem(layout, config).to(device)
    batch = random_batch(layout, case.rows, case.length, device)
    optimizer = GemOptimizer(model, small().train)
    forward = torch.compile(model) if case.compiled else model
    tasks = len(layout.schema.tasks)
    labels = torch.randint(0, 2, (case.rows, tasks), device=device).float()
    counts = torch.ones(case.rows, tasks, dtype=torch.bool, device=device)
    model.eval()
    flops = float(count_flops(model, batch))
    model.train()
    reference = patch.object(attention, "attend", attention.masked_attention)

    def step() -> None:
        amp = torch.autocast(device.type, dtype=torch.bfloat16, enabled=case.precision == "bf16")
        with amp, reference if case.masked else contextlib.nullcontext():
            output = forward(batch)
        loss = task_losses(output.logits_BK.float(), labels, counts).sum() / case.rows
        optimizer.step(loss + model.auxiliary_loss(output), rate=1.0)

    return step, flops


def random_batch(layout: InputLayout, rows: int, length: int, device: torch.device) -> GemBatch:
    """Inputs of the right shapes and ranges, histories full."""
    tokens = length + 1
    sizes = torch.tensor([column.size for column in layout.columns])
    offsets = torch.tensor([column.offset for column in layout.columns])
    codes = (torch.rand(rows, len(sizes)) * sizes).long() + offsets
    events = layout.side("ad")
    event_sizes = torch.tensor([*(column.size for column in events), layout.column("surface").size])
    event_offsets = torch.tensor([*(column.offset for column in events), layout.column("surface").offset])
    event_codes = (torch.rand(rows, tokens, len(event_sizes)) * event_sizes).long() + event_offsets
    known = {
        "set_codes_BC": codes,
        "set_floats_BG": torch.randn(rows, layout.set_floats),
        "event_codes_BTC": event_codes,
        "event_floats_BTG": torch.rand(rows, tokens, layout.event_floats),
        "age_s_BT": torch.arange(tokens).float().expand(rows, -1) * 3600,
        "timed_BT": torch.ones(rows, tokens, dtype=torch.bool),
        "mask_BT": torch.ones(rows, tokens, dtype=torch.bool),
        "gap_s_BT": torch.full((rows, tokens), 3600.0),
        "event_type_BT": torch.zeros(rows, tokens, dtype=torch.long),
        "surface_B": torch.zeros(rows, dtype=torch.long),
        "aggregates_BA": torch.zeros(rows, 0),
    }
    return GemBatch(**{field.name: known[field.name].to(device) for field in fields(GemBatch)})


if __name__ == "__main__":
    main(sys.argv[1])
