"""The presets travel as JSON, the largest has the published sizes, and the larger two have parts of their own."""

import json
from dataclasses import replace

import pytest

from foundation.config import GemConfig
from foundation.presets import base_model, large_model, small_model, tiny_model


@pytest.mark.parametrize("config", [tiny_model(), small_model(), base_model(), large_model()])
def test_survives_json(config: GemConfig) -> None:
    assert GemConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_large_is_the_architecture_s() -> None:
    large = large_model()
    sizes = (large.dim, large.heads, large.layers, large.pffn_hidden, large.seeds, large.pooled_tokens, large.kron_rank)
    assert sizes == (384, 3, 6, 128, 256, 32, 8)
    assert (large.attention, large.block, large.compskip) == ("block", 64, True)
    assert replace(large, compskip=False, attentive_fm=False, domain_experts=0) == GemConfig.from_depth(6)


def test_base_and_large_have_an_attentive_machine_and_experts_per_surface() -> None:
    assert [(preset.attentive_fm, preset.domain_experts) for preset in (base_model(), large_model())] == [
        (True, 16),
        (True, 64),
    ]
    assert not any(preset.attentive_fm or preset.domain_experts for preset in (tiny_model(), small_model()))
