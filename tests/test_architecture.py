"""The one-way rule, what the distribution ships, and that a server needs no torch."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"contracts", "events", "foundation", "precompute", "student_models", "serving", "loadtests"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


def test_the_folders_import_in_one_direction() -> None:
    linted = run(str(Path(sys.executable).with_name("lint-imports")), "--no-cache")
    assert linted.returncode == 0, linted.stdout


def test_every_folder_has_an_import_contract() -> None:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    assert {module.split(".")[0] for contract in contracts for module in contract["source_modules"]} == FOLDERS


def test_every_folder_says_its_job_in_its_docstring() -> None:
    for folder in FOLDERS:
        assert re.match(r'"""\S[^"]+"""', (ROOT / folder / "__init__.py").read_text()), folder


@pytest.fixture(scope="module")
def serve_report() -> dict[str, str]:
    """Name -> version of everything that `pip install gem-ads[serve]` would bring to an empty machine."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-")
    resolved = run(*pip, "-c", "constraints.txt", ".[serve]")
    if "Temporary failure in name resolution" in resolved.stderr or "Network is unreachable" in resolved.stderr:
        pytest.skip("pip reaches no package index, so it cannot resolve the extra")
    assert resolved.returncode == 0, resolved.stderr
    found = json.loads(resolved.stdout)["install"]
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in found}


def test_the_extra_serve_brings_a_server_and_no_torch(serve_report: dict[str, str]) -> None:
    assert {"gem-ads", "fastapi", "onnxruntime", "msgspec", "redis"} <= set(serve_report)
    assert not [name for name in serve_report if re.match(r"torch|triton|nvidia|locust|pytest", name)]


def test_the_constraints_pin_what_the_extra_installs(serve_report: dict[str, str]) -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    for name, version in serve_report.items():
        if name != "gem-ads":
            assert names.get(re.sub(r"[-_.]+", "-", name)) == version, name


def test_extras_are_those_that_the_documents_name() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert {"train", "kernels-cpu", "serve", "serve-gpu", "load", "dev"} <= set(extras)
    assert not any("triton" in requirement for requirement in extras["train"])
    assert not any("torch" in requirement for requirement in extras["serve"] + extras["serve-gpu"])
    replaced = [requirement.replace("onnxruntime-gpu", "onnxruntime") for requirement in extras["serve-gpu"]]
    assert replaced == extras["serve"]


def test_a_server_process_never_imports_torch() -> None:
    code = "import sys, serving.server, serving.__main__; print([m for m in sys.modules if m.split('.')[0] == 'torch'])"
    process = run(sys.executable, "-c", code)
    assert process.stdout.strip() == "[]", process.stderr


def test_the_distribution_ships_the_seven_folders_and_no_tests(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for folder in (*FOLDERS, "tests", "scripts"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheel = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path))
    built = run(sys.executable, *wheel, str(source))
    assert built.returncode == 0, built.stderr
    (path,) = tmp_path.glob("gem_ads-*.whl")
    names = zipfile.ZipFile(path).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == FOLDERS
    assert any(name.endswith("LICENSE") for name in names)


def test_no_module_reads_the_environment_or_uses_pickle_or_yaml() -> None:
    forbidden = {"pickle", "yaml", "joblib", "os.environ", "os.getenv", "torch.load"}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        # prometheus_client takes the folder of its workers' values from the environment alone: it may be set, not read
        written = {id(n.value) for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
        for node in nodes:
            names = {ast.unparse(node)} if isinstance(node, ast.Attribute) and id(node) not in written else set()
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
            assert not names & forbidden, f"{path}:{getattr(node, 'lineno', 0)}"


def test_every_command_keeps_the_promises_of_commands() -> None:
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        if "typer.Typer(" in (text := path.read_text()):
            assert "run(app)" in text, f"{path} is a command: wrap it with contracts.command.run"
