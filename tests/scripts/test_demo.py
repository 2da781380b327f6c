"""The demo's own promises: a failing step stops it with its code, what it starts is stopped, foreign files are kept."""

from pathlib import Path

import pytest

from scripts import demo
from scripts.demo import TRACKS, Demo
from tests.conftest import free_port


@pytest.fixture
def chain(tmp_path: Path) -> Demo:
    return Demo(TRACKS["smoke"], tmp_path)


def test_a_failing_step_stops_the_demo_with_its_exit_code(
    chain: Demo, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stopped:
        chain.step("a log from nowhere", "events.kuairand", "--dir", tmp_path / "nowhere", "--out", tmp_path / "log")
    assert stopped.value.code == 2
    captured = capfd.readouterr()
    assert "$ python -m events.kuairand --dir" in captured.out
    assert "nowhere" in captured.err
    assert "step 1 (a log from nowhere) ended with exit code 2" in captured.err


def test_what_the_demo_starts_is_stopped_when_a_step_fails(chain: Demo) -> None:
    url = f"redis://127.0.0.1:{(port := free_port())}/0"

    def fail_while_valkey_runs() -> None:
        with chain.running("Valkey", "precompute.valkey", "--port", port, ready=lambda: demo.ping(url)):
            assert demo.ping(url)
            demo.fail("a step failed", 2)

    with pytest.raises(SystemExit):
        fail_while_valkey_runs()
    assert not demo.ping(url)


def test_a_server_that_does_not_start_ends_the_demo_with_its_output(
    chain: Demo, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(SystemExit) as stopped,
        chain.running("Valkey", "precompute.valkey", "--port", 99999, ready=lambda: False),
    ):
        pytest.fail("it must not come to this")
    assert stopped.value.code == 2
    assert "65535" in capfd.readouterr().err


def test_a_work_folder_is_emptied_and_any_other_folder_is_kept(tmp_path: Path) -> None:
    mine, foreign = tmp_path / "mine", tmp_path / "foreign"
    demo.empty(mine)
    (mine / "log").mkdir()
    demo.empty(mine)
    assert [path.name for path in mine.iterdir()] == [demo.MARKER]
    foreign.mkdir()
    (foreign / "thesis.txt").touch()
    with pytest.raises(SystemExit) as stopped:
        demo.empty(foreign)
    assert stopped.value.code == 2
    assert (foreign / "thesis.txt").exists()


def test_kuairand_dir_is_named_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUAIRAND_DIR", "given")
    assert demo.track_of("kuairand").source == ("events.kuairand", "--dir", "given")
    assert demo.track_of("smoke") == TRACKS["smoke"]
    monkeypatch.delenv("KUAIRAND_DIR")
    assert demo.track_of("kuairand") == TRACKS["kuairand"]
