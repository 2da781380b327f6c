"""The README is a test: its demo runs, every other command in it exists, every link leads somewhere.

`make test` is the one command that is never run or asked anything: these tests are inside it.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from contracts.bodies import decode_rank_request
from precompute.settings import PrecomputeSettings
from serving.settings import Settings
from tests.command_runner import Done, run_commands
from tests.conftest import DemoRun

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
ARMS = ["base", "kd", "loopfm", "kd_loopfm", "placebo", "teacher_frozen", "teacher_refreshed"]


def commands() -> list[str]:
    """Every command line of the README's bash blocks, but the demo's and `make test`."""
    blocks = re.findall(r"^```bash\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]
    return [line for line in dict.fromkeys(lines) if line != "make test"]


@pytest.fixture(scope="module")
def helps() -> dict[str, Done]:
    """`--help` of every module that the README runs."""
    modules = sorted({shlex.split(line)[2] for line in commands() if line.startswith("python -m ")})
    return dict(zip(modules, run_commands([[module, "--help"] for module in modules]), strict=True))


@pytest.mark.parametrize("command", [line for line in commands() if not line.startswith("make ")])
def test_every_command_of_the_readme_exists_with_its_options(command: str, helps: dict[str, Done]) -> None:
    words = shlex.split(command)
    assert words[:2] == ["python", "-m"]
    answer = helps[words[2]]
    assert answer.code == 0, answer.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option.split("=")[0] in answer.stdout, f"{command}: no option {option}"


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("make ")])
def test_every_make_target_of_the_readme_exists(command: str) -> None:
    here = ("-n", "-o", f"{sys.prefix}/.installed", f"VENV={sys.prefix}")
    answer = subprocess.run([*shlex.split(command), *here], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr


def test_the_demo_of_the_readme_ends_with_the_promised_object(smoke_run: DemoRun) -> None:
    result = smoke_run.result
    assert (result["data"], result["split"]) == ("smoke", "validation")
    for task, values in result["ne"].items():
        assert list(values) == ARMS, task
        assert list(result["auc"][task]) == ARMS
        assert list(result["transfer_ratio"][task]) == ARMS[:5]
        assert 0 < result["best_ne"][task] < 1.5
    assert set(result["ne"]) == {"click", "conversion", "install"}
    assert result["rank"]["embedding"]["status"] == "fresh"


def test_the_demo_leaves_the_request_of_the_curl_line(smoke_run: DemoRun) -> None:
    assert "-d @runs/synthetic/request.json" in README
    assert decode_rank_request((smoke_run.folder / "request.json").read_bytes()).context is not None


@pytest.mark.parametrize("named_in", ["nothing", ".env", "environment"])
def test_make_serve_leaves_a_setting_to_who_names_it(named_in: str, tmp_path: Path) -> None:
    if named_in == ".env":
        (tmp_path / ".env").write_text("GEM_CLOCK=server\n")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho models=$GEM_MODELS clock=$GEM_CLOCK\n")
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEM_")}
    environment |= {"GEM_CLOCK": "server"} if named_in == "environment" else {}
    command = ["make", "-f", str(ROOT / "Makefile"), "-s", "serve", f"VENV={tmp_path}", "-o", f"{tmp_path}/.installed"]
    served = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    clock = {"nothing": "request", ".env": "", "environment": "server"}[named_in]
    assert served.stdout.splitlines()[-1] == f"models=runs/synthetic/artifacts clock={clock}", served.stderr


def test_the_demo_prints_each_command_before_it_runs(smoke_run: DemoRun) -> None:
    shown = re.findall(r"^\$ (?:GEM_\S+ )*python -m (\S+)", smoke_run.output, re.MULTILINE)
    assert shown == [
        "events.synthetic",
        "foundation.train",
        "precompute.backfill",
        "foundation.train",
        "foundation.evaluate",
        "foundation.evaluate",
        "student_models.train",
        "student_models.evaluate",
        "student_models.export",
        "precompute.valkey",
        "precompute.refresh",
        "serving",
    ]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(str(p) for p in (ROOT / "docs").rglob("*.md"))])
def test_links_inside_the_repository_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page}: {target}"


def test_every_file_that_the_design_page_names_exists() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (ROOT / "docs" / "architecture.md").read_text())
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_example_settings_are_all_settings_with_their_defaults() -> None:
    text = (ROOT / ".env.example").read_text()
    shown = dict(re.findall(r"^(?:# )?(GEM_\w+)=(.*)$", text, re.MULTILINE))
    compose = re.findall(r"\$\{(GEM_(?:RUN|UID|GID)):-([^}]+)\}", (ROOT / "docker-compose.yml").read_text())
    expected: dict[str, str | None] = {"GEM_KUAIRAND_DIR": "", "GEM_MOVIELENS_DIR": "", **dict(compose)}
    for settings in (Settings, PrecomputeSettings):
        for name, field in settings.model_fields.items():
            default = field.default.get_secret_value() if isinstance(field.default, SecretStr) else field.default
            value = None if field.is_required() else "" if default is None else str(default)
            assert expected.setdefault(f"GEM_{name.upper()}", value) == value, name
    assert set(shown) == set(expected)
    for name, value in expected.items():
        assert value is None or shown[name] == value, name
