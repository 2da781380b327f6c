"""Result files: tables, provenance, and plots that a second drawing does not change."""

import json
from pathlib import Path
from typing import Any

import pytest

from foundation.experiments import pages

pytest.importorskip("matplotlib")


def draw(root: Path) -> Path:
    drawn, axes, path = pages.figure("gem_test", root=root)
    axes.errorbar([1, 10], [0.9, 0.8], yerr=[0.01, 0.02], fmt="o", capsize=3, label="model")
    axes.set(xscale="log", xlabel="compute")
    axes.legend(frameon=False)
    pages.save(drawn, path)
    return path


def written(root: Path) -> dict[str, Any]:
    return pages.write("test", command="python -m this", figures={"ne": 0.5}, cost={"seeds": 3}, root=root)


def test_a_table_has_a_heading_a_rule_and_a_line_per_row() -> None:
    assert pages.table(("model", "NE"), [("GEM", "0.8"), ("DIN", "0.9")]).splitlines() == [
        "| model | NE |",
        "|---|---|",
        "| GEM | 0.8 |",
        "| DIN | 0.9 |",
    ]


def test_figures_are_written_with_their_spread() -> None:
    assert pages.mean_sd({"mean": 0.81234, "sd": 0.00126}) == "0.8123 ± 0.0013"
    assert pages.mean_sd({"mean": 0.81234, "sd": None}, 2) == "0.81"
    assert pages.bounds({"value": 0.01, "low": -0.02, "high": 0.04}, 2) == "+0.01 (-0.02 to +0.04)"


def test_raw_data_and_page_name_their_provenance(tmp_path: Path) -> None:
    held = written(tmp_path)
    raw = tmp_path / "results" / "gem_test.json"
    assert json.loads(raw.read_text()) == held
    assert (held["ne"], held["seeds"], held["command"]) == (0.5, 3, "python -m this")
    page = pages.page("test", title="A title", intro="\nAn intro.\n", body="The body.", held=held, root=tmp_path)
    text = page.read_text()
    assert page == tmp_path / "docs" / "results" / "gem_test.md"
    assert text.startswith("# A title\n\nAn intro.\n\n| ")
    assert text.endswith("\n\nThe body.\n")
    for fact in (held["commit"], held["date"], held["machine"]["torch"], held["machine"]["processor"]):
        assert fact in text
    assert "`python -m this`" in text
    (link,) = [line.split("](")[1].split(")")[0] for line in text.splitlines() if "raw data" in line]
    assert (page.parent / link).resolve() == raw.resolve()


def test_a_plot_is_the_same_bytes_at_a_second_drawing(tmp_path: Path) -> None:
    first, second = draw(tmp_path / "one").read_bytes(), draw(tmp_path / "two").read_bytes()
    assert b"<svg" in first
    assert first == second


def test_a_write_that_fails_keeps_what_stood_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = written(tmp_path)
    page = pages.page("test", title="Old", intro="", body="", held=held, root=tmp_path)
    kept = {path: path.read_bytes() for path in (page, tmp_path / "results" / "gem_test.json", draw(tmp_path))}

    def fail(*paths: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="killed"):
        pages.write("test", command="new", figures={}, cost={}, root=tmp_path)
    with pytest.raises(OSError, match="killed"):
        pages.page("test", title="New", intro="", body="", held=held, root=tmp_path)
    drawn, _, path = pages.figure("gem_test", root=tmp_path)
    with pytest.raises(OSError, match="killed"):
        pages.save(drawn, path)
    assert {path: path.read_bytes() for path in kept} == kept


def test_nothing_but_the_results_is_left_behind(tmp_path: Path) -> None:
    pages.page("test", title="T", intro="", body="", held=written(tmp_path), root=tmp_path)
    draw(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["docs/results/gem_test.md", "docs/results/gem_test.svg", "results/gem_test.json"]


def test_a_forest_has_every_row_once_and_marks_what_leaves_zero(tmp_path: Path) -> None:
    clear, open_ = {"value": 0.2, "low": 0.1, "high": 0.3}, {"value": 0.0, "low": -0.1, "high": 0.1}
    panels = {"click": {"DIN": clear, "BST": open_}, "like": {"BST": clear}}
    shown = pages.forest("gem_made", panels, label="difference", root=tmp_path, margin=0.05)
    drawn = (tmp_path / "docs/results/gem_made.svg").read_text()
    assert shown == "![difference](gem_made.svg)"
    assert [drawn.count(f"<!-- {text} -->") for text in ("click", "like", "DIN", "BST", "difference")] == [1] * 5
    assert "#1f77b4" in drawn
    assert "#7f7f7f" in drawn
    first = drawn
    pages.forest("gem_made", panels, label="difference", root=tmp_path, margin=0.05)
    assert (tmp_path / "docs/results/gem_made.svg").read_text() == first
