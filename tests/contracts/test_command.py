"""What every command promises: exit codes, one sentence, progress on standard error, JSON on the last line."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from contracts.command import report, run, track
from contracts.errors import GemError, InputError


@pytest.mark.parametrize(("error", "code"), [(InputError("no file x"), 2), (GemError("stopped midway"), 1)])
def test_an_error_is_one_sentence_and_an_exit_code(
    error: GemError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as stopped:
        run(main)
    assert stopped.value.code == code
    assert capsys.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("fault", [errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENOENT])
def test_a_path_that_cannot_be_is_bad_input_in_one_sentence(fault: int, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise OSError(fault, os.strerror(fault), "out/rows")

    with pytest.raises(SystemExit) as stopped:
        run(main)
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"error: out/rows: {os.strerror(fault)}; choose another path, or mend this one\n"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/rows"), "out/rows: No space left on device"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
        (OSError("Error writing bytes.\nDetail: disk full"), "Error writing bytes. Detail: disk full"),
        (OSError(), "OSError"),
        (OSError(errno.EIO, "Input/output error", b"rows"), "rows: Input/output error"),
    ],
)
def test_a_full_disk_is_a_failure_midway_in_one_sentence(
    error: OSError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as stopped:
        run(main)
    assert stopped.value.code == 1
    assert capsys.readouterr().err == f"error: {told}; finished work is kept; mend it and run this again\n"


def test_a_real_file_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows").touch()
    with pytest.raises(SystemExit) as stopped:
        run((tmp_path / "rows" / "space").mkdir)
    assert stopped.value.code == 2
    assert str(tmp_path / "rows" / "space") in capsys.readouterr().err


def test_a_finished_command_exits_with_0() -> None:
    with pytest.raises(SystemExit) as stopped:
        run(lambda: None)
    assert stopped.value.code == 0


def test_an_interrupted_command_says_that_work_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as stopped:
        run(main)
    assert stopped.value.code == 1
    assert "kept" in capsys.readouterr().err


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)


def test_the_report_is_one_line_of_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    report({"a": float("nan"), "b": [np.float64("inf"), 1.5], "c": {"é\n": ("x", None)}})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [None, 1.5], "c": {"é\n": ["x", None]}}


def test_progress_is_plain_lines_off_a_terminal_and_all_items_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(range(30), title="rows")) == list(range(30))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == "rows: 3/30"
    assert captured.err.splitlines()[-1] == "rows: 30/30"


def test_progress_without_a_length_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("ab"), title="rows")) == ["a", "b"]
    assert capsys.readouterr().err == ""
