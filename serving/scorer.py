"""ONNX Runtime for one student: model inputs in, probabilities out, with threads and memory under control."""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Executor

import numpy as np
import onnxruntime as ort

OUTPUT = "probabilities"
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
WARM_SIZES = (1, 16, 64, 128, 256, 512, 1000)
log = logging.getLogger(__name__)


class Scorer:
    """A loaded student. `inline_rows`: up to so many candidates run on the caller's thread.

    An inference of a small list takes less than a thread hop; a long one would hold up the event loop, so that store
    replies which have arrived would look like timeouts: it runs on `executor`, and ONNX Runtime releases the GIL.

    Where ONNX Runtime is a build with CUDA, the student runs on the GPU, in full float32 so that the golden answers
    hold. That path has not been run on a GPU: what was measured and tested is the CPU's.
    """

    def __init__(self, model: bytes, *, intra_op_threads: int, inline_rows: int, executor: Executor | None) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = intra_op_threads
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        # idle threads must not burn the cores that Valkey and the event loop need
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # candidate counts vary: the arena would keep the largest of every shape (onnxruntime#11118, #22271)
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
        options.log_severity_level = 3
        self._session = _open_session(model, options)
        self._inline_rows, self._executor = inline_rows, executor
        self._fixed_s, self._row_s = 0.0, 0.0

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Probabilities [N, tasks] float32, on the caller's thread."""
        return self._session.run([OUTPUT], inputs)[0]

    async def score(self, inputs: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """As `run`, without holding up the event loop for long lists."""
        if rows <= self._inline_rows or self._executor is None:
            return self.run(inputs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, self.run, inputs)

    def estimate_s(self, rows: int) -> float:
        """Seconds that an inference of so many candidates takes, as measured by `warm_up`."""
        return self._fixed_s + rows * self._row_s

    def warm_up(self, example: Mapping[str, np.ndarray]) -> None:
        """Run every size that requests have, and learn how long they take. `example`: any valid inputs."""
        fastest = {}
        for size in WARM_SIZES:
            inputs = {name: _resize(name, array, size) for name, array in example.items()}
            # the fastest of three: a busy machine at the start must not make requests skip the store for ever
            fastest[size] = min(self._timed(inputs) for _ in range(3))
        smallest, *_, largest = WARM_SIZES
        self._row_s = max(fastest[largest] - fastest[smallest], 0.0) / largest
        self._fixed_s = fastest[smallest]

    def _timed(self, inputs: Mapping[str, np.ndarray]) -> float:
        start = time.perf_counter()
        self.run(inputs)
        return time.perf_counter() - start


def _open_session(model: bytes, options: ort.SessionOptions) -> ort.InferenceSession:
    """On the GPU where ONNX Runtime has it and it works, else on the CPU."""
    if CUDA not in ort.get_available_providers():
        return ort.InferenceSession(model, options, providers=[CPU])
    session = ort.InferenceSession(model, options, providers=[(CUDA, {"use_tf32": "0"}), CPU])
    if CUDA not in session.get_providers():  # ONNX Runtime falls back by itself, for want of a driver, say
        log.warning("ONNX Runtime has %s but cannot use it; the student runs on the CPU", CUDA)
    return session


def _resize(name: str, array: np.ndarray, rows: int) -> np.ndarray:
    return np.resize(array, (rows, *array.shape[1:])) if name.startswith("ad_") else array
