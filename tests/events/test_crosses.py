"""Crosses of columns: unit scale, and more than a sum of what each column does alone."""

import numpy as np
import pytest

from events.crosses import cross_logit, make_attributes


def columns(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, size, rows) for name, size in {"brand": 5, "format": 4, "age": 6, "device": 3}.items()
    }


def crosses(rows: int, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    columns_T = columns(rows)
    ad = {name: columns_T[name] for name in ("brand", "format")}
    others = {name: columns_T[name] for name in ("age", "device")}
    return cross_logit(seed, ad=ad, others=others), columns_T


def test_crosses_have_unit_scale_and_follow_from_the_seed() -> None:
    logit, _ = crosses(5_000)
    assert logit.mean() == pytest.approx(0, abs=1e-9)
    assert logit.std() == pytest.approx(1)
    np.testing.assert_array_equal(logit, crosses(5_000)[0])
    assert not np.allclose(logit, crosses(5_000, seed=1)[0])


def test_crosses_depend_on_the_codes_alone_and_not_as_a_sum() -> None:
    logit, codes = crosses(20_000)
    cells = np.ravel_multi_index(tuple(codes.values()), (5, 4, 6, 3))
    mean = np.bincount(cells, weights=logit) / np.bincount(cells)
    np.testing.assert_allclose(logit, mean[cells], atol=1e-9)
    one_hot = np.concatenate([np.eye(int(c.max()) + 1)[c] for c in codes.values()], axis=1)
    alone = one_hot @ np.linalg.lstsq(one_hot, logit, rcond=None)[0]
    assert 0.2 < np.var(logit - alone) < 0.98, "neither a sum of effects nor noise"


def test_a_campaign_has_one_brand() -> None:
    campaign = np.arange(100) // 5
    attributes = make_attributes(0, campaign)
    assert set(attributes) == {"brand", "format", "price_band"}
    brands = attributes["brand"].reshape(20, 5)
    assert (brands == brands[:, :1]).all()
    assert len(np.unique(attributes["format"])) > 1
    assert {name: codes.tolist() for name, codes in make_attributes(0, campaign).items()} == {
        name: codes.tolist() for name, codes in attributes.items()
    }
