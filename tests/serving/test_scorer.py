"""The scorer: the same answer on the event loop's thread and on the executor's."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest

from serving.scorer import CPU, CUDA, Scorer
from tests.serving.small_student import SPEC, build_graph, random_inputs


@pytest.mark.parametrize(("rows", "inline"), [(0, True), (4, True), (5, False), (300, False)])
def test_long_lists_leave_the_event_loop_free(rows: int, inline: bool, monkeypatch: pytest.MonkeyPatch):
    threads: list[str] = []
    with ThreadPoolExecutor(1, thread_name_prefix="scorer") as executor:
        scorer = Scorer(build_graph(SPEC).SerializeToString(), intra_op_threads=1, inline_rows=4, executor=executor)
        inputs, run = random_inputs(SPEC, rows), scorer.run
        monkeypatch.setattr(scorer, "run", lambda given: threads.append(threading.current_thread().name) or run(given))
        scores = asyncio.run(scorer.score(inputs, rows))
    np.testing.assert_array_equal(scores, run(inputs))
    assert threads[0].startswith("scorer") != inline


def test_a_candidate_scores_the_same_in_any_list():
    scorer = Scorer(build_graph(SPEC).SerializeToString(), intra_op_threads=1, inline_rows=4, executor=None)
    inputs = random_inputs(SPEC, 37)
    together = scorer.run(inputs)
    for row in range(37):
        alone = {name: array[row : row + 1] if name.startswith("ad_") else array for name, array in inputs.items()}
        np.testing.assert_allclose(scorer.run(alone)[0], together[row], atol=1e-6)


def test_a_gpu_that_cannot_be_used_leaves_the_student_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if CUDA in ort.get_available_providers():
        pytest.skip("this build of ONNX Runtime has CUDA")
    monkeypatch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
    with pytest.warns(UserWarning, match=CUDA):
        scorer = Scorer(build_graph(SPEC).SerializeToString(), intra_op_threads=1, inline_rows=4, executor=None)
    assert scorer.run(random_inputs(SPEC, 3)).shape == (3, 3)
    assert "runs on the CPU" in caplog.text


def test_a_longer_list_is_expected_to_take_longer():
    scorer = Scorer(build_graph(SPEC).SerializeToString(), intra_op_threads=1, inline_rows=4, executor=None)
    scorer.warm_up(random_inputs(SPEC, 1))
    assert 0 < scorer.estimate_s(0) <= scorer.estimate_s(100) <= scorer.estimate_s(1000)
