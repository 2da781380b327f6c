"""Mixing draws rare cells more often at the same cost, in time order, and its weights give the data back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import InputError
from foundation.mixing import Mixing, belonging, boosts
from tests.events.small_logs import SCHEMA

SURFACES, TASKS = 3, 2


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Surface codes, the last one for unknown and rare ones among them, and the tasks each row belongs to."""
    rng = np.random.default_rng(seed)
    surface = rng.choice(SURFACES + 1, size=n, p=[0.7, 0.2, 0.05, 0.05])
    return surface, np.stack([rng.random(n) < 0.9, rng.random(n) < 0.1], axis=1)


def mixed(n: int, seed: int = 0, *, temperature: float = 2.0, window: int = 100) -> Mixing:
    surface, belongs = rows(n, seed)
    return Mixing.of(surface, belongs, temperature=temperature, window=window, seed=seed)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(0, 400),
    seed=st.integers(0, 1000),
    temperature=st.floats(0.3, 20),
    window=st.integers(1, 500),
)
def test_examples_order_and_windows_are_kept(n: int, seed: int, temperature: float, window: int) -> None:
    one = mixed(n, seed, temperature=temperature, window=window)
    position = one.position_n.numpy()
    assert len(position) == len(one.weight_n) == n
    assert (np.diff(position) >= 0).all()
    assert (position // window == np.arange(n) // window).all()  # as many draws from each window as it has rows
    assert (one.weight_n > 0).all()
    assert 0 < one.efficiency <= 1 + 1e-6
    again = mixed(n, seed, temperature=temperature, window=window)
    assert np.array_equal(again.position_n, position)
    assert np.array_equal(again.weight_n, one.weight_n)


@pytest.mark.parametrize("temperature", [0.5, 2.0, 5.0])
def test_the_expected_weighted_count_of_every_row_and_cell_is_the_data_s(temperature: float) -> None:
    n, draws = 600, 400
    surface, belongs = rows(n, 1)
    total = np.zeros(n)
    for seed in range(draws):
        one = Mixing.of(surface, belongs, temperature=temperature, window=150, seed=seed)
        total += np.bincount(one.position_n, weights=one.weight_n, minlength=n)
    mean = total / draws
    # systematic draws: a row comes floor or ceil of its expectation e, so its variance is at most 1 / (4 e^2) per pass
    assert abs(mean.mean() - 1) < 0.02
    for code in range(SURFACES + 1):
        for task in range(TASKS):
            cell = (surface == code) & belongs[:, task]
            if cell.sum() >= 5:
                assert mean[cell].mean() == pytest.approx(1, abs=0.06), (code, task)


def test_rare_cells_are_drawn_more_often_and_weigh_less() -> None:
    one = mixed(20_000, temperature=3.0, window=2_000)
    by_share = sorted((c for c in one.cells if c.task < TASKS), key=lambda cell: cell.share)
    rarest, commonest = by_share[0], by_share[-1]
    assert rarest.drawn > 1.5 * rarest.share
    assert rarest.weight < 1
    assert commonest.drawn < commonest.share
    assert commonest.weight > 1
    assert sum(cell.share for cell in one.cells) == pytest.approx(1)
    assert sum(cell.drawn for cell in one.cells) == pytest.approx(1)
    for cell in one.cells:
        assert cell.weight * cell.drawn == pytest.approx(cell.share, rel=0.1)


def test_a_temperature_of_one_is_the_data_as_they_are() -> None:
    one = mixed(777, temperature=1.0)
    assert np.array_equal(one.position_n, np.arange(777))
    assert (one.weight_n == 1).all()
    assert one.efficiency == pytest.approx(1)


def test_boosts_flatten_the_shares() -> None:
    share = np.array([[0.6, 0.2, 0.05], [0.1, 0.0, 0.05]])
    even = boosts(share, 1e6) * share
    assert np.ptp(even[share > 0][[0, 1, 3]]) < 1e-5  # the tasks' cells
    assert (boosts(share, 1e6)[:, -1] == 1).all()
    np.testing.assert_allclose(boosts(share, 1.0), 1)


def test_rows_may_belong_to_the_tasks_of_their_positive_labels_alone() -> None:
    label, counts = np.array([[1, 0], [0, 0], [1, 1]]), np.array([[True, True], [True, False], [True, False]])
    assert belonging(label, counts, "labels").tolist() == counts.tolist()
    assert belonging(label, counts, "positives").tolist() == [[True, False], [False, False], [True, False]]


def test_reports_by_name() -> None:
    surface, belongs = np.array([0, 0, len(SCHEMA.surfaces)]), np.array([[True, False], [True, True], [False, False]])
    report = Mixing.of(surface, belongs, temperature=2.0, window=3, seed=0).to_json(SCHEMA)
    names = {(cell["surface"], cell["task"]) for cell in report["cells"]}
    assert names == {(SCHEMA.surfaces[0], "click"), (SCHEMA.surfaces[0], "conversion"), ("unknown", "none")}


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(InputError, match="temperature"):
        mixed(10, temperature=0.0)
    with pytest.raises(InputError, match="window"):
        mixed(10, window=0)
