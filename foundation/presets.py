"""The sizes of GEM that recipes use: functions that return a complete `GemConfig`."""

from dataclasses import replace

from foundation.config import GemConfig


def tiny_model() -> GemConfig:
    """For tests and smoke runs: seconds on one core."""
    return GemConfig(
        dim=16,
        heads=2,
        layers=2,
        embedding_dim=8,
        history_length=16,
        pffn_hidden=8,
        summary_tokens=4,
        seeds=8,
        pooled_tokens=4,
        kron_rank=2,
        window=4,
        experts=2,
        fm_rank=4,
        fm_hidden=32,
        head_hidden=(64, 32),
    )


def small_model() -> GemConfig:
    """For two CPU cores. Chosen on 30 April of KuaiRand and on the synthetic demo world (docs/log.md)."""
    return GemConfig(
        dim=32,
        heads=2,
        layers=2,
        embedding_dim=16,
        history_length=30,
        pffn_hidden=32,
        summary_tokens=8,
        seeds=16,
        pooled_tokens=8,
        kron_rank=4,
        window=8,
        experts=2,
        fm_rank=8,
        fm_hidden=64,
        head_hidden=(128, 64),
        dropout=0.1,
    )


def base_model() -> GemConfig:
    """A proposal for a CPU from readers of the paper: d 64, four layers, F 32, 32 seeds for 8 tokens, CompSkip.

    The factorisation machine is attentive, and each surface has a small expert [I].
    """
    return GemConfig(
        dim=64,
        heads=4,
        layers=4,
        embedding_dim=16,
        history_length=64,
        pffn_hidden=32,
        summary_tokens=16,
        seeds=32,
        pooled_tokens=8,
        kron_rank=4,
        window=16,
        experts=2,
        fm_rank=16,
        fm_hidden=128,
        head_hidden=(256, 128),
        dropout=0.1,
        compskip=True,
        attentive_fm=True,
        domain_experts=16,
    )


def large_model() -> GemConfig:
    """For one GPU: `from_depth(6)` with CompSkip, an attentive factorisation machine and an expert per surface.

    d 384, 3 heads, F 128, 256 seeds for 32 tokens, blocks of 64.
    """
    return replace(GemConfig.from_depth(6), compskip=True, attentive_fm=True, domain_experts=64)
