"""Logs: JSON lines, hashed users, and a reader that does not read never holds anything up."""

import io
import json
import logging
import os
import threading
from collections.abc import Callable

from contracts.hashing import stable_hash
from serving.logs import MAX_PENDING, JsonHandler, LineWriter, RequestLog
from tests.serving.conftest import Client, body

Open = Callable[..., Client]


def written(work: Callable[[LineWriter], None]) -> list[dict]:
    stream = io.StringIO()
    writer = LineWriter(stream)
    writer.start()
    work(writer)
    writer.close()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_entries_come_out_in_order_one_a_line():
    def work(writer: LineWriter) -> None:
        for n in range(100):
            writer.write({"n": n, "text": "é\n"})

    lines = written(work)
    assert [line["n"] for line in lines] == list(range(100))
    assert lines[0]["text"] == "é\n"


def test_the_logging_module_goes_the_same_way():
    def work(writer: LineWriter) -> None:
        logger = logging.Logger("serving.test")
        logger.addHandler(JsonHandler(writer))
        try:
            raise ValueError("broken")
        except ValueError:
            logger.exception("it %s", "failed")

    (line,) = written(work)
    assert (line["level"], line["logger"], line["event"]) == ("error", "serving.test", "it failed")
    assert "ValueError: broken" in line["exception"]


def test_a_reader_that_does_not_read_costs_old_lines_and_no_time():
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as source, os.fdopen(write_end, "w") as stream:
        writer = LineWriter(stream)
        writer.start()
        for n in range(3 * MAX_PENDING):
            writer.write({"n": n, "filling": "x" * 50})
        assert writer.dropped > 0
        reader = threading.Thread(target=lambda: numbers.extend(json.loads(line)["n"] for line in source))
        numbers: list[int] = []
        reader.start()
        writer.close()
        stream.close()
        reader.join()
    assert numbers == sorted(numbers)
    assert len(numbers) == 3 * MAX_PENDING - writer.dropped
    assert numbers[-1] == 3 * MAX_PENDING - 1, "the newest lines are kept"


def test_a_closed_standard_error_is_survived():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb", buffering=0) as raw:
        writer = LineWriter(io.TextIOWrapper(raw, write_through=True))
        writer.start()
        writer.write({"n": 1})
        writer.close()
    assert writer.dropped == 1


def test_refusals_by_the_server_are_always_logged_and_answers_at_their_rate():
    draws = iter([0.9, 0.1])

    def work(writer: LineWriter) -> None:
        log = RequestLog(writer, rate=0.5, random=lambda: next(draws))
        for status in (200, 200, 503):
            log.add(status=status, user_id=None, fields={})

    assert [line["status"] for line in written(work)] == [200, 503]


def test_a_request_leaves_a_line_without_its_user(open_client: Open):
    client = open_client(log_rate=1)
    stream = client.service.writer._stream
    request_id = client.rank(body(user_id="somebody@example.org")).json()["request_id"]
    client.rank({"surface": "feed"})
    client.service.writer.close()
    assert "somebody" not in stream.getvalue()
    answered, refused = (json.loads(line) for line in stream.getvalue().splitlines() if '"rank"' in line)
    assert answered["user"] == f"{stable_hash('somebody@example.org'):016x}"
    assert (answered["request_id"], answered["status"], answered["model"]) == (request_id, 200, "student/1")
    assert (answered["embedding"], answered["candidates"]) == ("unavailable", 2)
    assert answered["catalogue"] == client.service.ranker.catalogue.current.version
    assert (refused["status"], refused["code"]) == (422, "invalid_request")
