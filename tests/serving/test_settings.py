"""Settings: read from GEM_ variables, wrong ones named without their value."""

import pytest

from contracts.errors import InputError
from serving.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)  # no .env here
    for name in Settings.model_fields:
        monkeypatch.delenv(f"GEM_{name.upper()}", raising=False)
    monkeypatch.setenv("GEM_MODELS", "artifacts")
    monkeypatch.setenv("GEM_CATALOG", "catalog.arrow")
    return monkeypatch


def test_two_settings_are_enough():
    settings = load_settings()
    assert (settings.host, settings.port, settings.metrics_port, settings.workers) == ("127.0.0.1", 8000, 9464, 1)
    assert (settings.clock, settings.feature_log) == ("server", None)


def test_an_empty_value_is_none(environment):
    environment.setenv("GEM_FEATURE_LOG", "")  # not the current folder
    environment.setenv("GEM_PORT", "")
    assert (load_settings().feature_log, load_settings().port) == (None, 8000)


def test_the_url_is_a_secret(environment):
    environment.setenv("GEM_REDIS_URL", "redis://:password@cache:6379/0")
    assert "password" not in repr(load_settings())
    assert load_settings().redis_url.get_secret_value() == "redis://:password@cache:6379/0"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GEM_PORT", "http"),
        ("GEM_PORT", "70000"),
        ("GEM_CLOCK", "mine"),
        ("GEM_WORKERS", "0"),
        ("GEM_FEATURE_LOG_RATE", "1.5"),
        ("GEM_FRESH_S", "-1"),
        ("GEM_REDIS_URL", "http://user:password@cache"),
    ],
)
def test_a_wrong_setting_is_named_and_its_value_is_not(environment, name: str, value: str):
    environment.setenv(name, value)
    with pytest.raises(InputError) as caught:
        load_settings()
    assert name in str(caught.value)
    assert value not in str(caught.value)


def test_a_missing_setting_is_named(environment):
    environment.delenv("GEM_MODELS")
    with pytest.raises(InputError, match="GEM_MODELS"):
        load_settings()


def test_stale_before_fresh_is_refused(environment):
    environment.setenv("GEM_STALE_S", "10")
    with pytest.raises(InputError, match="GEM_STALE_S"):
        load_settings()


def test_every_setting_has_a_description():
    assert all(field.description for field in Settings.model_fields.values())
