"""The synthetic world: deterministic, complete, and such that the best attainable NE is known."""

import json
import subprocess
import sys
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from contracts.features import InputSpec
from contracts.schema import HOUR_MS
from events import recipes
from events.history import HistoryIndex
from events.log import UNKNOWN_LABEL, InteractionLog
from events.metrics import calibration, ne
from events.splits import DAY_MS
from events.store import read_calendar, read_log, read_truth
from events.synthetic import app
from events.world import make_world, world_calendar, world_schema
from tests.events.command_line import CommandLine
from tests.events.test_store import assert_same

TASKS = ("click", "conversion", "install")


@pytest.fixture(scope="module")
def smoke() -> tuple[InteractionLog, dict[str, np.ndarray]]:
    return make_world(recipes.smoke())


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p))


def test_a_seed_gives_one_world(tiny_log: InteractionLog) -> None:
    again, _ = make_world(recipes.tiny())
    assert_same(again, tiny_log)
    other, _ = make_world(replace(recipes.tiny(), seed=1))
    assert not np.array_equal(other.event_ms[:100], tiny_log.event_ms[:100])


@pytest.mark.parametrize("name", ["tiny", "smoke"])
def test_worlds_have_about_the_rows_that_they_promise(name: str) -> None:
    config = getattr(recipes, name)()
    log, _ = make_world(config)
    assert len(log) == pytest.approx(config.impressions, rel=0.05)


def test_rows_are_in_order_of_arrival_and_some_arrive_late(smoke: tuple[InteractionLog, dict]) -> None:
    log, _ = smoke
    assert (np.diff(log.ingested_ms) >= 0).all()
    assert (log.ingested_ms > log.event_ms).all()
    late = log.ingested_ms - log.event_ms > HOUR_MS
    assert 0.003 < late.mean() < 0.03
    assert (np.diff(log.event_ms) < 0).any(), "offsets are not in order of event time"


def test_a_request_shows_distinct_ads_at_one_time(smoke: tuple[InteractionLog, dict]) -> None:
    log, _ = smoke
    order = np.argsort(log.request_id, kind="stable")
    same = np.flatnonzero(np.diff(log.request_id[order]) == 0)
    first, second = order[same], order[same + 1]
    assert len(same) > len(log) / 4
    for column in (log.event_ms, log.user, log.surface, log.context["device"]):
        assert (column[first] == column[second]).all()
    pairs = {(int(r), int(a)) for r, a in zip(log.request_id, log.ad, strict=True)}
    assert len(pairs) == len(log)


def test_event_ids_are_distinct(smoke: tuple[InteractionLog, dict]) -> None:
    assert len(np.unique(smoke[0].event_id)) == len(smoke[0])


def test_later_tasks_are_defined_on_clicks_alone(smoke: tuple[InteractionLog, dict]) -> None:
    log, _ = smoke
    for task in ("conversion", "install"):
        assert ((log.labels[task] == UNKNOWN_LABEL) == (log.labels["click"] == 0)).all()


def test_positives_are_known_when_they_happen_and_negatives_when_the_window_has_passed(
    smoke: tuple[InteractionLog, dict],
) -> None:
    log, _ = smoke
    for task in log.schema.tasks:
        delay = log.label_ms[task.name] - log.event_ms
        positive = log.labels[task.name] == 1
        assert (delay[~positive] == task.window_ms).all()
        assert (delay <= task.window_ms).all()
        assert (delay > 0).all()
    delay = (log.label_ms["conversion"] - log.event_ms)[log.labels["conversion"] == 1]
    median = float(np.median(delay)) / recipes.smoke().conversion_median_ms
    assert 0.8 < median < 1.2


def test_a_conversion_is_not_usable_before_its_window_has_passed(smoke: tuple[InteractionLog, dict]) -> None:
    """Else the quick conversions of the last day would be over-represented: positives wait for the window too."""
    log, _ = smoke
    end = world_calendar(recipes.smoke()).student.end_ms
    usable = log.usable("conversion", as_of_ms=end)
    young = (log.event_ms > end - DAY_MS) & (log.event_ms < end) & (log.labels["conversion"] == 1)
    assert young.any()
    assert not usable[young].any()


@pytest.mark.parametrize("task", TASKS)
def test_a_row_that_had_not_arrived_may_judge_but_not_train(smoke: tuple[InteractionLog, dict], task: str) -> None:
    log, _ = smoke
    delay_ms = log.ingested_ms - log.event_ms
    # just before the row that took longest arrives: its label is known by then
    cut = int(log.ingested_ms[np.argmax(np.where(log.labels[task] >= 0, delay_ms, 0))]) - 1
    usable, trainable = log.usable(task, as_of_ms=cut), log.trainable(task, as_of_ms=cut)
    underway = log.ingested_ms > cut
    assert (usable & underway).any()
    assert not (trainable & underway).any()
    np.testing.assert_array_equal(trainable[~underway], usable[~underway])


def test_every_row_of_the_validation_day_can_be_judged_by_the_end_of_the_log(
    smoke: tuple[InteractionLog, dict],
) -> None:
    log, _ = smoke
    calendar = world_calendar(recipes.smoke())
    rows = calendar.rows(log, "validation")
    for task in log.schema.tasks:
        judged = calendar.judged_ms("validation", task)
        assert judged <= calendar.log.end_ms
        defined = log.labels[task.name][rows] != UNKNOWN_LABEL
        assert log.usable(task.name, as_of_ms=judged)[rows][defined].all()


def test_surfaces_differ_in_click_rate(smoke: tuple[InteractionLog, dict]) -> None:
    log, _ = smoke
    rates = [log.labels["click"][log.surface == code].mean() for code in (1, 2, 3, 4)]
    assert max(rates) > 2 * min(rates)


def test_a_few_users_make_much_of_the_traffic(smoke: tuple[InteractionLog, dict]) -> None:
    counts = np.sort(np.bincount(smoke[0].user))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.25 * counts.sum()


def test_the_truth_is_calibrated_and_no_one_beats_it(smoke: tuple[InteractionLog, dict]) -> None:
    log, truth = smoke
    for task in TASKS:
        rows = log.labels[task] != UNKNOWN_LABEL
        y, p = log.labels[task][rows], truth[task][rows]
        assert calibration(y, p) == pytest.approx(1, abs=0.12)
        best = ne(y, p).ne
        assert best < 1
        for shift, scale in ((0.3, 1), (-0.3, 1), (0, 0.7), (0, 1.4)):
            worse = 1 / (1 + np.exp(-(shift + scale * logit(p))))
            assert ne(y, worse).ne > best


def test_the_profile_tells_the_teacher_what_ids_and_context_cannot(smoke: tuple[InteractionLog, dict]) -> None:
    """Engagement measures the hidden user bias: it orders users by how much they click."""
    log, truth = smoke
    engagement = log.user_features["engagement"][log.user]
    low, high = np.quantile(engagement, (0.2, 0.8))
    assert truth["click"][engagement > high].mean() > 1.4 * truth["click"][engagement < low].mean()


def test_the_demo_world_leaves_a_student_much_to_gain() -> None:
    """Best attainable NE of click around .85; the true effects of ad, surface and device alone stay far above it."""
    config = recipes.demo()
    log, truth = make_world(config)
    y, p = log.labels["click"], truth["click"]
    best = ne(y, p).ne
    assert 0.82 < best < 0.92
    effects = np.full(len(log), logit(p).mean())
    for column in (log.surface, log.ad, log.context["device"]):
        rest = logit(p) - effects
        effects += (np.bincount(column, weights=rest) / np.maximum(np.bincount(column), 1))[column]
    # without the rest of the logit, probabilities move towards the mean: shrink as the logistic-normal integral does
    spread = np.var(logit(p) - effects)
    without_user = 1 / (1 + np.exp(-effects / np.sqrt(1 + np.pi * spread / 8)))
    assert ne(y, without_user).ne > best + 0.07


def test_what_a_student_may_read() -> None:
    schema = world_schema(recipes.demo())
    visible = {f.name for f in schema.features if not f.teacher_only}
    assert visible == {"category", "campaign_code", "device"}
    assert all(f.teacher_only for f in schema.features if f.side == "user")
    assert InputSpec(schema, history_length=8, dim=32).tensors()


def test_interests_drift_slowly() -> None:
    """The profile is measured before the first day, so what it tells of the clicks fades, but only a little."""
    still = replace(recipes.smoke(), user_bias_sd=1e-9, interest_day_correlation=1.0)
    moving = replace(still, interest_day_correlation=0.5)
    assert first_to_last_day(recipes.smoke()) > 0.5
    assert first_to_last_day(still) > 0.9
    assert first_to_last_day(moving) < 0.3


def first_to_last_day(config: recipes.WorldConfig) -> float:
    """Correlation of users' mean true logit on ads of one category, between the first and the last days."""
    config = replace(config, gap=3.0, ad_effect_sd=1e-9, users=40, categories=2, profile_noise_sd=1e-9)
    log, truth = make_world(config)
    day = (log.event_ms - config.start_ms) // DAY_MS
    # within a surface and a category the logit varies with the user's interest alone
    kept = (log.surface == 1) & (log.ad_features["category"][log.ad] == log.ad_features["category"][0])
    means: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    for days in (day < 2, day >= config.days - 2):
        rows = kept & days
        counts.append(np.bincount(log.user[rows], minlength=config.users))
        total = np.bincount(log.user[rows], weights=logit(truth["click"])[rows], minlength=config.users)
        means.append(total / np.maximum(counts[-1], 1))
    both = (counts[0] > 2) & (counts[1] > 2)
    return float(np.corrcoef(means[0][both], means[1][both])[0, 1])


# ---- dependence on old events ----------------------------------------------------------------------------------------


def test_a_long_range_world_depends_on_clicks_of_long_ago() -> None:
    """Against the same world without loyalty, the click logit moves by exactly what the definition says, row by row:
    the user's favourite among the clicks that lie at least 100 impressions back, judged at the start of the day."""
    config = replace(recipes.with_loyalty(recipes.smoke()), impressions=6_000, users=15)
    log, truth = make_world(config)
    _, without = make_world(replace(config, long_range_weight=0.0))
    moved = logit(truth["click"]) - logit(without["click"])
    day = (log.event_ms - config.start_ms) // DAY_MS
    category = log.ad_features["category"][log.ad]
    expected = np.zeros(len(log))
    order = np.lexsort((log.event_id, log.event_ms))
    for user in range(config.users):
        rows = order[log.user[order] == user]
        for number in np.unique(day[rows]):
            old = rows[day[rows] < number][: -(config.long_range_events - 1)]
            clicked = category[old][log.labels["click"][old] == 1]
            clicks = np.bincount(clicked, minlength=config.categories + 1)
            today = rows[day[rows] == number]
            if clicks.any():
                expected[today] = (category[today] == clicks.argmax()) - 1 / config.categories
    assert (expected != 0).mean() > 0.4, "most rows have a past that long"
    agree = np.isclose(moved, config.long_range_weight * expected, atol=1e-9)
    # ads of one request have no order among them: where the cut falls inside one, a favourite may differ
    assert agree.mean() > 0.98


def test_other_worlds_do_not() -> None:
    assert recipes.demo().long_range_weight == 0


def fewer_users(config: recipes.WorldConfig, share: int) -> recipes.WorldConfig:
    """The world with a `share`-th of its users, each as busy as before."""
    return replace(config, users=config.users // share, impressions=config.impressions // share)


@pytest.fixture(scope="module")
def long_range() -> tuple[InteractionLog, dict[str, np.ndarray]]:
    return make_world(fewer_users(recipes.long_range(), 20))


def test_the_loyalty_of_the_long_range_world_has_a_span_and_moves_on(
    long_range: tuple[InteractionLog, dict[str, np.ndarray]],
) -> None:
    config = fewer_users(recipes.long_range(), 20)
    log, truth = long_range
    # without loyalty every other draw stays the same
    _, without = make_world(replace(config, long_range_weight=0.0))
    moved = logit(truth["click"]) - logit(without["click"])
    day = (log.event_ms - config.start_ms) // DAY_MS
    category = log.ad_features["category"][log.ad] - 1
    order = np.lexsort((log.event_id, log.event_ms))
    user = 7
    rows = order[log.user[order] == user]
    expected, favourites = np.zeros(len(rows)), []
    for number in np.unique(day[rows]):
        past = rows[day[rows] < number]
        band = past[: -(config.long_range_events - 1)][-config.long_range_span :]
        clicks = np.bincount(category[band][log.labels["click"][band] == 1], minlength=config.categories)
        if clicks.any():
            favourites.append((clicks.argmax() + 1) % config.categories)
            expected[day[rows] == number] = (category[rows] == favourites[-1])[day[rows] == number] - 1 / 12
    assert len(set(favourites)) > 2, "it moves on"
    assert np.isclose(moved[rows], config.long_range_weight * expected, atol=1e-9).mean() > 0.9


def test_the_long_range_world_has_long_histories_and_many_test_rows(
    long_range: tuple[InteractionLog, dict[str, np.ndarray]],
) -> None:
    log, _ = long_range
    config = recipes.long_range()
    seen = np.bincount(log.user)
    assert 300 < seen.min() <= seen.max() < 2_400
    assert config.impressions * config.test_days / config.days > 300_000
    assert world_calendar(config).test.end_ms == config.start_ms + 14 * DAY_MS


def test_histories_of_2048_events_are_those_of_the_definition(
    long_range: tuple[InteractionLog, dict[str, np.ndarray]],
) -> None:
    """Every earlier event that had arrived, however many; users of this world have up to 2,000."""
    log, _ = long_range
    index = HistoryIndex(log)
    rows = world_calendar(recipes.long_range()).rows(log, "test")[::400]
    histories = index.before(rows, 2_048)
    for row, found, length in zip(rows, histories.index, histories.length, strict=True):
        now = log.event_ms[row]
        past = np.flatnonzero((log.user == log.user[row]) & (log.event_ms < now) & (log.ingested_ms < now))
        past = past[np.lexsort((log.event_id[past], log.event_ms[past]))]
        np.testing.assert_array_equal(found[:length], past)
    assert histories.length.mean() > 500


# ---- a world with structure of every difficulty ---------------------------------------------------------------------


SMALL_SCALING = fewer_users(recipes.scaling(), 100)


@pytest.fixture(scope="module")
def rich() -> tuple[InteractionLog, dict[str, np.ndarray]]:
    return make_world(SMALL_SCALING)


def test_the_scaling_world_is_as_large_as_it_promises(rich: tuple[InteractionLog, dict[str, np.ndarray]]) -> None:
    config = recipes.scaling()
    assert config.impressions * config.teacher_days / config.days == pytest.approx(1_000_000)
    assert len(rich[0]) == pytest.approx(config.impressions / 100, rel=0.05)
    assert_same(make_world(SMALL_SCALING)[0], rich[0])


def test_the_scaling_world_is_calibrated_and_its_best_ne_is_low(
    rich: tuple[InteractionLog, dict[str, np.ndarray]],
) -> None:
    log, truth = rich
    for task in TASKS:
        rows = log.labels[task] != UNKNOWN_LABEL
        assert calibration(log.labels[task][rows], truth[task][rows]) == pytest.approx(1, abs=0.12)
    assert ne(log.labels["click"], truth["click"]).ne < 0.75


WITHOUT = {
    "crosses": replace(SMALL_SCALING, cross_sd=0.0),
    "interest": replace(SMALL_SCALING, habit_sd=0.0),
    "sequence": replace(SMALL_SCALING, sequence_sd=0.0),
    "fatigue": replace(SMALL_SCALING, fatigue=0.0),
    "satiation": replace(SMALL_SCALING, satiation=0.0),
}


@pytest.mark.parametrize("part", WITHOUT)
def test_every_kind_of_structure_counts(rich: tuple[InteractionLog, dict[str, np.ndarray]], part: str) -> None:
    """The same users see the same ads; without the part they click with other probabilities."""
    log, truth = rich
    other, without = make_world(WITHOUT[part])
    assert_same(replace(other, labels=log.labels, label_ms=log.label_ms), log)
    moved = logit(truth["click"]) - logit(without["click"])
    assert moved.std() > 0.1


def test_ad_attributes_are_open_to_every_model(rich: tuple[InteractionLog, dict[str, np.ndarray]]) -> None:
    visible = {f.name for f in rich[0].schema.features if not f.teacher_only}
    assert visible == {"category", "campaign_code", "brand", "format", "price_band", "device"}


# ---- worlds stay what they are --------------------------------------------------------------------------------------

GOLDEN = {"tiny": "f533111b43c16cae", "smoke-long-range": "d2aa78a3beddf991"}
"""blake2b of ids, users, ads, times and labels, little-endian, one column after another."""


@pytest.mark.parametrize("config", [recipes.tiny(), recipes.with_loyalty(recipes.smoke())], ids=lambda c: c.name)
def test_older_worlds_keep_their_bytes(config: recipes.WorldConfig) -> None:
    log, _ = make_world(config)
    digest = blake2b(digest_size=8)
    for column in (log.event_id, log.user, log.ad, log.event_ms, log.ingested_ms, *log.labels.values()):
        digest.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
    assert digest.hexdigest() == GOLDEN[config.name]


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_world_and_reports_its_best_ne(tmp_path: Path, tiny_log: InteractionLog) -> None:
    arguments = [sys.executable, "-m", "events.synthetic", "--out", str(tmp_path / "log"), "--world", "tiny"]
    root = Path(__file__).parents[2]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    log, truth = read_log(tmp_path / "log"), read_truth(tmp_path / "log")
    assert_same(log, tiny_log)
    rows = read_calendar(tmp_path / "log").rows(log, "validation")
    assert last["best_ne"]["click"]["ne"] == ne(log.labels["click"][rows], truth["click"][rows]).ne
    assert last["rows"] == len(log)
    again = subprocess.run(arguments, capture_output=True, text=True, cwd=root)
    assert again.returncode == 2
    assert "exists" in again.stderr
    assert "Traceback" not in again.stderr


def test_size_and_long_range_are_options(command: CommandLine, tmp_path: Path) -> None:
    options = ("--world", "tiny", "--impressions", "500", "--long-range", "--seed", "3")
    done = command(app, "--out", tmp_path / "log", *options)
    last = json.loads(done.out.splitlines()[-1])
    assert (last["world"], last["seed"]) == ("tiny-long-range", 3)
    assert 450 < last["rows"] < 550


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [(["--impressions", "5"], "too few"), (["--world", "mars"], "'mars' is not one of"), (["--seed", "-1"], "--seed")],
)
def test_bad_options_end_with_exit_code_2(
    command: CommandLine, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = command(app, "--out", tmp_path / "log", *arguments)
    assert done.code == 2
    assert problem in done.err
    assert not (tmp_path / "log").exists()
