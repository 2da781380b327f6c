"""The evaluation: figures per task and surface on the rows that count, predictions by event, JSON last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from contracts.errors import InputError
from events.history import HistoryIndex
from events.log import UNKNOWN_LABEL, InteractionLog
from events.metrics import ne
from events.splits import Calendar
from foundation.evaluate import frozen, score
from foundation.evaluate import main as evaluate
from foundation.teacher import Teacher


def test_prints_a_table_and_ends_with_json(tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    predictions = tmp_path / "deep" / "p.parquet"
    line = [sys.executable, "-m", "foundation.evaluate", "--log", tiny_log_dir, "--checkpoint", tiny_checkpoint]
    done = subprocess.run(
        [*map(str, line), "--predictions", str(predictions)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    assert any("conversion" in text and "feed" in text for text in table)
    result = json.loads(last)
    assert result["split"] == "validation"
    assert not result["trained_on_rows"]
    everything = result["scores"]["click"]["all"]
    assert everything["rows"] == sum(one["rows"] for name, one in result["scores"]["click"].items() if name != "all")
    assert 0.5 < everything["ne"] < 1.5
    assert 0.3 < everything["calibration"] < 3
    assert 0 < everything["user_auc"]["auc"] < 1
    assert everything["user_auc"]["users"] > 10
    assert predictions.exists()


def test_predictions_are_the_teacher_s(
    tiny_log_dir: Path,
    tiny_log: InteractionLog,
    tiny_calendar: Calendar,
    tiny_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    evaluate(tiny_log_dir, tiny_checkpoint, predictions=tmp_path / "p.parquet")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = tiny_calendar.rows(tiny_log, "validation")
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["event_id", "p_click", "p_conversion", "p_install"]
    assert table["event_id"].to_numpy().tolist() == tiny_log.event_id[rows].tolist()
    soft = Teacher.load(tiny_checkpoint).represent(tiny_log, rows).soft
    np.testing.assert_array_equal(table["p_click"].to_numpy(), soft[:, 0])
    click = ne(tiny_log.labels["click"][rows], soft[:, 0])
    assert result["scores"]["click"]["all"]["ne"] == pytest.approx(click.ne)


def test_a_task_is_judged_where_it_is_defined(tiny_log: InteractionLog, tiny_calendar: Calendar) -> None:
    rows = tiny_calendar.rows(tiny_log, "validation")
    constant = np.full((len(rows), 3), 0.3, dtype=np.float32)
    scores = score(tiny_log, tiny_calendar, "validation", rows, constant, constant)
    figures = scores["conversion"]["all"]
    assert figures.score.rows == (tiny_log.labels["click"][rows] == 1).sum()
    assert figures.calibration == pytest.approx(0.3 * figures.score.rows / figures.score.positives)
    assert figures.user_auc.auc == 0.5  # ties


def test_a_frozen_log_hides_what_came_later_and_keeps_what_came_before(
    tiny_log: InteractionLog, tiny_calendar: Calendar
) -> None:
    start_ms = tiny_calendar.period("validation").start_ms
    rows = tiny_calendar.rows(tiny_log, "validation")
    then = frozen(tiny_log, start_ms)
    history = HistoryIndex(then).before(rows, 50)
    seen = history.index[history.index >= 0]
    assert len(seen)
    assert (tiny_log.ingested_ms[seen] < start_ms).all()
    labels = HistoryIndex(then).labels("click", history, rows)
    known = tiny_log.label_ms["click"][np.maximum(history.index, 0)] < start_ms
    assert (labels[(history.index >= 0) & ~known] == UNKNOWN_LABEL).all()
    earlier = tiny_calendar.rows(tiny_log, "teacher")
    before, after = (HistoryIndex(log).before(earlier, 50) for log in (tiny_log, then))
    assert np.array_equal(before.index, after.index)


def test_rows_that_trained_the_teacher_are_pointed_out(
    tiny_log_dir: Path, tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tiny_log_dir, tiny_checkpoint, period="teacher")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["trained_on_rows"]


def test_the_test_period_stays_closed(tiny_log_dir: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(InputError, match="stays closed"):
        evaluate(tiny_log_dir, tiny_checkpoint, period="test")


def test_a_wrong_checkpoint_or_period_is_refused(tiny_log_dir: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no finished checkpoint"):
        evaluate(tiny_log_dir, tmp_path)
    with pytest.raises(InputError, match="no period 'summer'"):
        evaluate(tiny_log_dir, tiny_checkpoint, period="summer")
