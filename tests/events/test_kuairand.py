"""KuaiRand: both layouts, every trap, on made-up files; and the counts of the real ones where they are present."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InputError
from contracts.features import InputSpec
from events.history import HistoryIndex
from events.kuairand import app
from events.kuairand_log import build_log
from events.kuairand_source import FIRST_DAY, HISTORY, IMPRESSIONS, LOG_CSVS, USERS_CSV, VIDEOS_CSV, read_source
from events.log import InteractionLog
from events.splits import kuairand_calendar
from events.store import read_log
from tests.conftest import kuairand_folder
from tests.events.command_line import CommandLine
from tests.events.small_kuairand import PAST, ROWS, Row, ms, write_copy, write_official
from tests.events.test_store import assert_same

WRITERS = (write_copy, write_official)


@pytest.fixture(params=WRITERS, ids=["copy", "official"])
def write(request: pytest.FixtureRequest) -> Callable[..., Path]:
    return request.param


def load(folder: Path, *, final: bool = False) -> InteractionLog:
    return build_log(read_source(folder), final=final)


def impressions(log: InteractionLog) -> list[tuple[str, str, int]]:
    return [(log.user_ids[u], log.ad_ids[a], int(t)) for u, a, t in zip(log.user, log.ad, log.event_ms, strict=True)]


def test_both_layouts_give_the_same_log(tmp_path: Path) -> None:
    assert_same(load(write_copy(tmp_path / "copy")), load(write_official(tmp_path / "official")))


def test_the_test_day_is_left_out_unless_it_is_final(write: Callable[..., Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    calendar = kuairand_calendar()
    assert len(calendar.rows(load(folder), "test")) == 0
    assert len(calendar.rows(load(folder, final=True), "test")) == 1
    assert len(load(folder)) == len(load(folder, final=True)) - 1 == 7


def test_an_impression_that_is_written_twice_counts_once(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    assert len(set(impressions(log))) == len(log)
    assert len(np.unique(log.event_id)) == len(log)


def test_copies_that_disagree_are_positive_in_any_order(tmp_path: Path) -> None:
    twice = (Row(1, 10, ms(4, 26)), Row(1, 10, ms(4, 26), click=1))
    for number, rows in enumerate((twice, twice[::-1])):
        log = load(write_copy(tmp_path / str(number), rows))
        assert log.labels["click"].tolist() == [1]


def test_the_day_follows_from_the_time_and_not_from_the_date(write: Callable[..., Path], tmp_path: Path) -> None:
    """One minute into 25 April in Shanghai is still 24 April in UTC, and in the file's `date`."""
    log = load(write(tmp_path / "data"))
    calendar = kuairand_calendar()
    days = {
        name: len(calendar.rows(log, name)) for name in ("teacher_fit", "teacher_validation", "teacher", "validation")
    }
    assert days == {"teacher_fit": 2, "teacher_validation": 1, "teacher": 4, "validation": 2}


def test_date_hourmin_and_outcomes_of_the_row_are_never_read(write: Callable[..., Path], tmp_path: Path) -> None:
    other = [replace(row, date=20220101, hourmin=1, play_time_ms=99, duration_ms=0) for row in ROWS]
    assert_same(load(write(tmp_path / "a")), load(write(tmp_path / "b", other)))


def test_the_order_of_the_rows_does_not_matter(write: Callable[..., Path], tmp_path: Path) -> None:
    shuffled, past = list(ROWS), list(PAST)
    random.Random(0).shuffle(shuffled)
    random.Random(1).shuffle(past)
    assert_same(load(write(tmp_path / "a")), load(write(tmp_path / "b", shuffled, past)))


def test_rows_are_in_order_of_time(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    assert (np.diff(log.event_ms) >= 0).all()
    assert log.offset.tolist() == list(range(len(log)))


def test_the_stray_24_april_is_dropped(tmp_path: Path) -> None:
    stray = Row(1, 10, ms(4, 24, 23, 59), date=20220425)
    assert_same(load(write_copy(tmp_path / "a", [*ROWS, stray])), load(write_copy(tmp_path / "b")))


def test_rows_at_or_before_the_end_of_the_users_history_are_dropped(tmp_path: Path) -> None:
    past = [Row(1, 12, ms(4, 25, 12))]
    rows = [Row(1, 10, ms(4, 25, 12, 0, milli)) for milli in (-1, 0, 1)]
    assert impressions(load(write_copy(tmp_path / "data", rows, past))) == [("1", "10", ms(4, 25, 12, 0, 1))]


def test_rare_tabs_are_pooled(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    surfaces = sorted(log.schema.surfaces[code] for code in log.surface)
    assert surfaces == ["other", "tab0", "tab1", "tab1", "tab2", "tab4", "tab6"]


def test_untimed_history_precedes_the_log_in_order(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    assert log.untimed is not None
    events = [(log.user_ids[u], log.ad_ids[a]) for u, a in zip(log.untimed.user, log.untimed.ad, strict=True)]
    assert events == [("1", "12"), ("2", "11"), ("2", "10"), ("4", "12")]
    assert log.untimed.labels["long_view"].tolist() == [0, 0, 1, 1]
    assert log.untimed.labels["like"].tolist() == [1, 0, 0, 1]
    assert set(log.untimed.labels) == {"long_view", "like"}, "the source has no click of these events"
    assert log.untimed.before_ms.tolist() == [ms(4, 10) + 1, *[ms(4, 20, 1) + 1] * 2, ms(4, 24, 23, 58) + 1]


def test_the_official_history_is_cut_to_the_last_50(tmp_path: Path) -> None:
    past = [Row(1, 10 + number % 3, ms(4, 10, 1, 0, number)) for number in range(60)]
    log = load(write_official(tmp_path / "data", past=past))
    assert log.untimed is not None
    assert log.ad_ids[log.untimed.ad].tolist() == [str(10 + number % 3) for number in range(10, 60)]


def test_nulls_and_unknown_lengths_have_code_zero(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    assert log.user_features["onehot_feat4"].tolist() == [1, 0, 2, 1]
    assert log.ad_features["music_type"].tolist() == [2, 0, 1]
    assert log.ad_features["duration"][1] == 0
    assert log.ad_features["duration"][0] < log.ad_features["duration"][2]


def test_codes_follow_the_order_of_the_values(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    assert log.user_features["user_active_degree"].tolist() == [2, 3, 2, 1]
    assert log.ad_features["author"][0] == log.ad_features["author"][1]
    assert log.campaign.tolist() == ["7", "7", "8"]


def test_no_outcome_is_a_feature_and_the_profile_is_the_teachers(write: Callable[..., Path], tmp_path: Path) -> None:
    schema = load(write(tmp_path / "data")).schema
    outcomes = ("click", "like", "follow", "comment", "forward", "hate", "long_view", "play", "stay", "enter")
    ours = [feature.name for feature in schema.features if feature.side != "user"]
    assert not [name for name in ours if any(outcome in name for outcome in outcomes)]
    assert "duration_ms" not in ours
    assert InputSpec(schema, history_length=4, dim=8).tensors(), "a student can be built: user features are hidden"


def test_the_teacher_sees_the_tab_itself_and_the_counts(write: Callable[..., Path], tmp_path: Path) -> None:
    log = load(write(tmp_path / "data"))
    known = {feature.name: feature for feature in log.schema.features}
    assert known["tab"].teacher_only
    assert known["fans_user_num"].teacher_only
    assert 1 <= log.context["tab"].min() <= log.context["tab"].max() < known["tab"].cardinality
    assert log.user_features["fans_user_num"].tolist() == pytest.approx([0, 0.2 * np.log(6), 0, 0])


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "neither layout": (lambda f: remove(f, *LOG_CSVS), "holds neither"),
    "one of two CSVs": (lambda f: (f / LOG_CSVS[0]).unlink(), r"4_08_to_4_21_pure\.csv is missing"),
    "no users": (lambda f: (f / USERS_CSV).unlink(), r"user_features_pure\.csv is missing"),
    "an empty CSV": (lambda f: (f / VIDEOS_CSV).write_text(""), r"video_features_basic_pure\.csv is not a readable"),
    "a CSV without rows": (lambda f: cut(f / VIDEOS_CSV, lines=1), r"video_features_basic_pure\.csv holds no rows"),
    "a CSV cut in a line": (lambda f: cut(f / LOG_CSVS[1], bytes_=-5), r"4_22_to_5_08_pure\.csv is not a readable CSV"),
    "a missing column": (
        lambda f: (f / LOG_CSVS[1]).write_text((f / LOG_CSVS[1]).read_text().replace("time_ms", "when", 1)),
        r"4_22_to_5_08_pure\.csv: column 'time_ms' is missing",
    ),
    "a missing profile column": (
        lambda f: (f / USERS_CSV).write_text((f / USERS_CSV).read_text().replace("onehot_feat3", "x", 1)),
        r"user_features_pure\.csv: column 'onehot_feat3' is missing",
    ),
    "a user without a profile": (lambda f: cut(f / USERS_CSV, lines=3), r"user_features_pure\.csv lacks id"),
}


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def cut(path: Path, *, lines: int | None = None, bytes_: int | None = None) -> None:
    if lines is not None:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    else:
        path.write_bytes(path.read_bytes()[:bytes_])


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(tmp_path: Path, case: str) -> None:
    spoil, problem = BAD[case]
    folder = write_official(tmp_path / "data")
    spoil(folder)
    with pytest.raises(InputError, match=problem):
        load(folder)


def test_a_truncated_parquet_file_is_named(tmp_path: Path) -> None:
    folder = write_copy(tmp_path / "data")
    for name in (HISTORY, IMPRESSIONS):
        (folder / name).write_bytes((folder / name).read_bytes()[:200])
        with pytest.raises(InputError, match=rf"{name} is not a readable Parquet file"):
            load(folder)


def test_a_copy_without_its_history_is_refused(tmp_path: Path) -> None:
    folder = write_copy(tmp_path / "data")
    (folder / HISTORY).unlink()
    with pytest.raises(InputError, match=r"history\.parquet is missing"):
        load(folder)


def test_files_without_labelled_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no impression from 25 April"):
        load(write_copy(tmp_path / "data", rows=ROWS[-1:]))


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """In an empty folder, with no KuaiRand folder set."""
    monkeypatch.chdir(tmp_path)
    for name in ("GEM_KUAIRAND_DIR", "KUAIRAND_DIR"):
        monkeypatch.delenv(name, raising=False)
    return CommandLine(monkeypatch, capsys)


def test_the_command_writes_a_log_and_reports_it(tmp_path: Path) -> None:
    folder, out = write_copy(tmp_path / "data"), tmp_path / "log"
    arguments = [sys.executable, "-m", "events.kuairand", "--dir", str(folder), "--out", str(out)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["rows"], last["untimed"], last["periods"]["test"]) == (7, 4, 0)
    assert len(read_log(out)) == 7


@pytest.mark.parametrize("name", ["GEM_KUAIRAND_DIR", "KUAIRAND_DIR"])
def test_the_folder_may_come_from_the_environment(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(name, str(write_official(tmp_path / "data")))
    assert command(app, "--out", "log").code == 0
    assert not (tmp_path / "results").exists(), "the test day was not opened"


def test_two_folders_in_the_environment_are_refused_unless_an_option_decides(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = write_copy(tmp_path / "data")
    monkeypatch.setenv("KUAIRAND_DIR", str(folder))
    monkeypatch.setenv("GEM_KUAIRAND_DIR", "elsewhere")
    done = command(app, "--out", "log")
    assert done.code == 2
    assert f"GEM_KUAIRAND_DIR is elsewhere but KUAIRAND_DIR is {folder}; unset one of them" in done.err
    assert not (tmp_path / "log").exists()
    assert command(app, "--dir", str(folder), "--out", "log").code == 0
    monkeypatch.setenv("GEM_KUAIRAND_DIR", str(folder))
    assert command(app, "--out", "same").code == 0
    monkeypatch.setenv("GEM_KUAIRAND_DIR", "")
    assert command(app, "--out", "one").code == 0


def test_a_named_folder_of_the_test_data_must_exist(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="which is no folder"):
        kuairand_folder(str(tmp_path / "mistyped"), default=tmp_path)
    assert kuairand_folder(str(tmp_path), default=tmp_path / "nowhere") == tmp_path
    assert kuairand_folder(None, default=tmp_path) == tmp_path
    with pytest.raises(pytest.skip.Exception, match="GEM_KUAIRAND_DIR is not set"):
        kuairand_folder(None, default=tmp_path / "nowhere")


def test_opening_the_test_day_is_written_down(command: CommandLine, tmp_path: Path) -> None:
    write_copy(tmp_path / "data")
    for out in ("one", "two"):
        done = command(app, "--dir", "data", "--out", out, "--final")
        assert json.loads(done.out.splitlines()[-1])["periods"]["test"] == 1
    openings = json.loads((tmp_path / "results" / "test_openings.json").read_text())
    assert len(openings) == 2
    assert set(openings[0]) == {"date", "commit", "command"}
    assert "--final" in openings[0]["command"]


def test_a_truncated_file_ends_with_one_sentence(command: CommandLine, tmp_path: Path) -> None:
    path = write_copy(tmp_path / "data") / IMPRESSIONS
    path.write_bytes(path.read_bytes()[:-20])
    done = command(app, "--dir", "data", "--out", "log")
    assert done.code == 2
    assert "impressions.parquet is not a readable Parquet file" in done.err
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"], "nothing half-written stays"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--dir", "nowhere"], "no KuaiRand folder at nowhere"),
        (["--dir", "."], "holds neither impressions.parquet"),
        ([], "pass --dir or set GEM_KUAIRAND_DIR"),
    ],
)
def test_a_wrong_path_ends_with_one_sentence(
    command: CommandLine, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = command(app, *arguments, "--out", "log")
    assert done.code == 2
    assert problem in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "log").exists()


# ---- the real files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kuairand(kuairand_dir: Path) -> InteractionLog:
    return load(kuairand_dir)


def test_the_real_files_have_the_rows_that_are_known(kuairand_dir: Path) -> None:
    rows = read_source(kuairand_dir).rows
    assert len(rows.user) == 222_444
    assert (rows.day < FIRST_DAY).sum() == 141


def test_the_real_periods_have_the_rows_that_are_known(kuairand: InteractionLog) -> None:
    """Counts of the reference figures: fit 25-29 April, choose 30 April, evaluate 1-7 May."""
    calendar = kuairand_calendar()
    rows = {name: len(calendar.rows(kuairand, name)) for name in ("teacher_fit", "teacher_validation", "test")}
    assert rows == {"teacher_fit": 71_303, "teacher_validation": 20_545, "test": 0}
    may = (kuairand.event_ms >= calendar.teacher_validation.end_ms) & (kuairand.event_ms < calendar.test.start_ms)
    assert may.sum() == 115_144
    assert len(np.unique(kuairand.user[may])) == 22_059
    assert kuairand.labels["click"][may].mean() == pytest.approx(0.4497, abs=5e-5)
    assert kuairand.labels["long_view"][may].mean() == pytest.approx(0.3169, abs=5e-5)
    assert kuairand.labels["like"][may].mean() == pytest.approx(0.0173, abs=5e-5)


def test_real_untimed_events_end_before_their_users_rows(kuairand: InteractionLog) -> None:
    untimed = kuairand.untimed
    assert untimed is not None
    assert len(untimed.user) == 817_187
    ends = np.zeros(len(kuairand.user_ids), dtype=np.int64)
    np.maximum.at(ends, untimed.user, untimed.before_ms)
    assert (kuairand.event_ms >= ends[kuairand.user]).all()


def test_real_histories_exclude_ties(kuairand: InteractionLog) -> None:
    rows = np.arange(0, len(kuairand), 50)
    histories = HistoryIndex(kuairand).before(rows, 50)
    found = histories.index >= 0
    earlier = kuairand.event_ms[np.maximum(histories.index, 0)] < kuairand.event_ms[rows][:, None]
    assert (earlier | ~found).all()
    assert (kuairand.user[np.maximum(histories.index, 0)] == kuairand.user[rows][:, None])[found].all()
