"""The traffic: Zipf users, distinct candidates, the same from the same seed."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from contracts.bodies import decode_rank_request, encode
from contracts.errors import InputError
from loadtests.traffic import Population, Traffic, time_of


def traffic(seed: int = 0, candidates: int = 5) -> Traffic:
    population = Population.load(catalog=None, users_file=None)
    return Traffic(population, candidates=candidates, objective="ecpm", seed=seed)


def test_the_same_seed_draws_the_same():
    one, same, other = traffic(), traffic(), traffic(seed=1)
    drawn = [one.request(["feed", "reels"]) for _ in range(20)]
    assert drawn == [same.request(["feed", "reels"]) for _ in range(20)]
    assert drawn != [other.request(["feed", "reels"]) for _ in range(20)]


def test_a_few_users_make_much_of_the_traffic():
    source = traffic(candidates=0)
    users = Counter(source.request(["feed"])["user_id"] for _ in range(2000))
    assert users["u0"] > 50
    assert len(users) > 300


def test_requests_fit_the_contract():
    body = traffic().request(["feed"], timestamp_ms=1_700_000_000_000)
    request = decode_rank_request(msgspec.json.encode(body))
    assert len(set(request.candidates.ad_ids)) == 5
    assert request.context == {"timestamp_ms": 1_700_000_000_000}
    assert encode(request)


def test_ids_come_from_a_log(tiny_log_dir: Path):
    population = Population.load(catalog=tiny_log_dir / "catalog.arrow", users_file=tiny_log_dir / "users.parquet")
    assert (len(population.ads), len(population.users)) == (60, 200)


def test_users_come_from_a_text_file(tmp_path: Path):
    (tmp_path / "users.txt").write_text("ann\nbob\n\n")
    assert Population.load(catalog=None, users_file=tmp_path / "users.txt").users == ["ann", "bob"]


@pytest.mark.parametrize("name", ["missing.txt", "broken.parquet", "empty.txt"])
def test_a_bad_users_file_is_named(tmp_path: Path, name: str):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InputError, match=name):
        Population.load(catalog=None, users_file=tmp_path / name)


@pytest.mark.parametrize("name", ["missing.arrow", "broken.arrow"])
def test_a_bad_catalogue_is_named(tmp_path: Path, name: str):
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1")
    with pytest.raises(InputError, match=name):
        Population.load(catalog=tmp_path / name, users_file=None)


def test_more_candidates_than_ads_are_refused():
    with pytest.raises(InputError, match="--candidates"):
        traffic(candidates=5001)


def test_the_time_comes_from_a_request(tmp_path: Path):
    (tmp_path / "request.json").write_text('{"context": {"timestamp_ms": 1700000000000}}')
    assert time_of(tmp_path / "request.json") == 1_700_000_000_000


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"context": {"timestamp_ms": -1}}', '{"context": {"timestamp_ms": "1"}}']
)
def test_a_request_without_a_time_is_named(tmp_path: Path, text: str):
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(InputError, match=r"request\.json"):
        time_of(tmp_path / "request.json")
