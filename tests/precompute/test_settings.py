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
