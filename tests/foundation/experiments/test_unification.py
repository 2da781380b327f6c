"""One model per task and one per surface are stitched to predictions for all rows."""

from pathlib import Path

import numpy as np
import pytest

from events.splits import Period, day_calendar
from foundation.experiments.compare import judged
from foundation.experiments.data import Dataset
from foundation.experiments.jobs import Outcome
from foundation.experiments.unification import _on_surface, _recipe, _stitched_surfaces, _stitched_tasks
from foundation.log_tensors import LogTensors
from tests.events.small_logs import small_log

ROWS, SEEDS = 6, 2
JUDGE = Period("judge", 0, 100)


def constant(value: float) -> list[Outcome]:
    """An outcome per seed: task k of seed s is predicted as value + s / 100 + k / 1000."""
    return [
        Outcome((value + s / 100 + np.arange(2) / 1000 + np.zeros((ROWS, 1))).astype(np.float32), {"seconds": 1})
        for s in range(SEEDS)
    ]


@pytest.fixture(scope="module")
def data() -> Dataset:
    """Surfaces alternate, and the log is not in time order."""
    log = small_log([(0, 50), (1, 40), (2, 30), (0, 20), (1, 10), (2, 0)], clicks=[1, 0, 0, 1, 0, 0])
    return Dataset("small", Path(), log, day_calendar(0, teacher_days=2, student_days=1), LogTensors(log))


def test_each_task_comes_from_its_own_model() -> None:
    done = {"joint": constant(0.1), "task click": constant(0.2), "task conversion": constant(0.3)}
    stitched = _stitched_tasks(done, ["click", "conversion"])
    assert len(stitched) == SEEDS
    for s, one in enumerate(stitched):
        assert one.soft == pytest.approx(np.tile([0.2 + s / 100, 0.301 + s / 100], (ROWS, 1)))


def test_each_row_comes_from_its_surface_s_own_model(data: Dataset) -> None:
    done = {"joint": constant(0.1), "surface other": constant(0.2), "surface feed": constant(0.3)}
    surface = data.log.surface[data.rows(JUDGE)]
    assert surface.tolist() == [1, 0, 1, 0, 1, 0]
    for s, one in enumerate(_stitched_surfaces(done, data, JUDGE, ["other", "feed"])):
        assert one.soft[:, 0] == pytest.approx(np.where(surface == 1, 0.3, 0.2) + s / 100)
        assert one.soft[:, 1] == pytest.approx(np.where(surface == 1, 0.301, 0.201) + s / 100)


def test_a_surface_without_training_rows_keeps_the_joint_model(data: Dataset) -> None:
    done = {"joint": constant(0.1), "surface feed": constant(0.3)}
    (first, _) = _stitched_surfaces(done, data, JUDGE, ["feed"])
    assert first.soft[:, 0] == pytest.approx([0.3, 0.1, 0.3, 0.1, 0.3, 0.1])
    assert done["joint"][0].soft[:, 0] == pytest.approx([0.1] * ROWS)  # untouched


def test_a_surface_s_figures_are_of_its_rows_alone(data: Dataset) -> None:
    done = {"joint": constant(0.4)} | {
        arm: constant(0.5) for arm in ("one per surface", "one per task", "domain experts")
    }
    click = judged(data, JUDGE)["click"]
    # by time, the clicks of surface 0 ("other") are none, those of 1 none or two
    told = [_on_surface(click, code, done) for code in (0, 1)]
    assert [one["rows"] for one in told] == [3, 3]
    assert sum(one["positives"] for one in told) == 2
    for one, code in zip(told, (0, 1), strict=True):
        two_classes = len(set(click.y[click.surface == code].tolist())) == 2
        assert ("joint_minus_one_per_surface" in one) == two_classes
    none = _on_surface(click, 2, done)
    assert none == {"rows": 0, "positives": 0}


def test_the_recipe_has_no_untimed_events_which_know_no_surface() -> None:
    assert _recipe().train.untimed_per_user == 0
