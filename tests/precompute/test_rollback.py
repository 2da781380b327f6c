import json

import pytest

from contracts.errors import InputError
from events.representations import RepresentationLog
from precompute.rollback import main
from tests.events.made_rows import SPACE, append, made_rows, new_log
from tests.precompute.rebuild import LENGTH, expect_rebuild, publisher, registry_of


@pytest.fixture
def log(valkey, tmp_path) -> RepresentationLog:
    """Published once."""
    log = new_log(tmp_path)
    append(log, made_rows(50))
    publisher(valkey, log).publish(length=LENGTH)
    return log


@pytest.mark.parametrize(("to", "target"), [(None, "g000002"), ("g000001", "g000001"), ("g000002", "g000002")])
def test_back_to_the_previous_generation_or_to_a_named_one(valkey, valkey_url, log, capsys, to, target):
    for _ in range(2):
        publisher(valkey, log).publish(full=True)
    main(space=SPACE, to=to, redis_url=valkey_url)
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done == {"space": SPACE, "from": "g000003", "generation": target, "users": 5}
    assert registry_of(valkey, log).pointer() == target
    expect_rebuild(valkey, log)
    assert all(valkey.ttl(key) > 0 for key in valkey.scan_iter(match=f"emb:{SPACE}:g000003:*"))


@pytest.mark.parametrize(
    ("to", "message"), [(None, "no generation before g000001"), ("g000001", "--to g000001"), ("g000007", "--to")]
)
def test_without_a_generation_to_go_to_it_is_bad_input_and_changes_nothing(valkey, valkey_url, log, to, message):
    with pytest.raises(InputError, match=message) as refused:
        main(space=SPACE, to=to, redis_url=valkey_url)
    assert refused.value.exit_code == 2
    assert registry_of(valkey, log).pointer() == "g000001"
    expect_rebuild(valkey, log)
