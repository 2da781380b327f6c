import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import InputError
from precompute.settings import read_settings


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("GEM_REDIS_URL", "redis://:secret@cache:7000/1")
    settings = read_settings()
    assert settings.redis_url.get_secret_value() == "redis://:secret@cache:7000/1"
    assert "secret" not in repr(settings)


def test_the_command_line_wins(monkeypatch):
    monkeypatch.setenv("GEM_REDIS_URL", "redis://cache:7000/1")
    assert read_settings("redis://other").redis_url.get_secret_value() == "redis://other"


def test_a_retired_generation_lives_an_hour_at_least(monkeypatch):
    monkeypatch.setenv("GEM_RETIRED_TTL_S", "60")
    with pytest.raises(InputError, match="GEM_RETIRED_TTL_S"):
        read_settings()


def test_settings_come_from_the_file_env_of_the_folder_and_the_environment_wins(monkeypatch, tmp_path):
    """The server reads the same file: both must speak to one Valkey."""
    monkeypatch.chdir(tmp_path)
    for name in ("GEM_REDIS_URL", "GEM_RETIRED_TTL_S"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".env").write_text("GEM_REDIS_URL=redis://from-file:7000/1\nGEM_RETIRED_TTL_S=4000\nGEM_PORT=1\n")
    assert read_settings().redis_url.get_secret_value() == "redis://from-file:7000/1"
    monkeypatch.setenv("GEM_REDIS_URL", "redis://from-environment")
    assert read_settings().redis_url.get_secret_value() == "redis://from-environment"
    assert read_settings().retired_ttl_s == 4_000


BAD_URLS = [
    "valkey-host:6379",
    "http://:hunter2@cache/0",
    "redis://:hunter2/x@127.0.0.1:17379/0",
    "redis://:7/hunter2@127.0.0.1:17379/0",
    "redis://someone:7#hunter2@cache/0",
    "redis://:hunter2?x@cache/0",
    "redis://:hunter2@h:notaport/0",
    "redis://:hunter2@h:99999/0",
    "redis://:hunter2@[::1/0",
    "redis://:hunter2@h/0?socket_timeout=hunter2",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_is_none_is_bad_input_that_shows_nothing_of_it(monkeypatch, url):
    with pytest.raises(InputError, match=r"^--redis-url: ") as of_option:
        read_settings(url)
    monkeypatch.setenv("GEM_REDIS_URL", url)
    with pytest.raises(InputError, match=r"^GEM_REDIS_URL: ") as of_environment:
        read_settings()
    for caught in (of_option, of_environment):
        assert caught.value.exit_code == 2
        assert "hunter" not in str(caught.value)
        assert "notaport" not in str(caught.value)


def test_a_command_with_such_a_url_ends_with_one_sentence():
    arguments = [sys.executable, "-m", "precompute.status", "--redis-url", "redis://:hunter2/x@127.0.0.1:17379/0"]
    done = subprocess.run(arguments, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --redis-url: is no Redis URL")
    assert done.stderr.count("\n") == 1
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "url", ["redis://:p%2Fw%40@cache:7000/1", "rediss://cache?db=2", "unix:///run/valkey.sock", "redis://[::1]:7000/0"]
)
def test_a_url_that_the_client_reads_is_taken(url):
    assert read_settings(url).redis_url.get_secret_value() == url
