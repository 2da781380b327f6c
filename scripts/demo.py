"""`make demo`: the whole chain on one machine, each step a public command that is printed so that it can be repeated.

events -> teacher -> representation log -> students -> artifact; Valkey -> refresh -> server -> one ranked request.
The last line of standard output is one JSON object. A step that fails stops the demo with that step's exit code.
"""

import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError

import numpy as np
import redis
from rich.console import Console
from rich.table import Table

from contracts.provenance import record
from events.representations import AsOf, RepresentationLog
from events.store import read_log

ROOT = Path(__file__).resolve().parents[1]
MARKER = ".gem-demo"
"""Stands in a work folder of the demo: only a folder that holds it is ever emptied."""
START_S = 60
CANDIDATES = 10


@dataclass(frozen=True)
class Track:
    """What differs between the demo's data: where the log comes from, how large the models are."""

    source: tuple[str, ...]
    teacher: str
    student: str
    seeds: int


TRACKS = {
    "synthetic": Track(("events.synthetic", "--world", "demo"), teacher="small", student="light", seeds=3),
    "kuairand": Track(("events.kuairand",), teacher="small", student="light", seeds=3),
    "smoke": Track(("events.synthetic", "--world", "smoke"), teacher="tiny", student="tiny", seeds=1),
}


def track_of(data: str) -> Track:
    """The track; KUAIRAND_DIR, of make or the environment, becomes --dir, so that no other setting goes before it."""
    track, folder = TRACKS[data], os.environ.get("KUAIRAND_DIR")
    return replace(track, source=(*track.source, "--dir", folder)) if data == "kuairand" and folder else track


def main() -> None:
    """Run every step of the chain for one data track."""
    parser = ArgumentParser(description="Run the whole chain once, ending in one ranked request.")
    parser.add_argument("--data", choices=sorted(TRACKS), default="synthetic", help="which log (default: synthetic)")
    parser.add_argument("--out", type=Path, help="work folder, emptied first (default: runs/<data>)")
    parser.add_argument("--record", type=Path, help="write all figures with their provenance to this JSON file")
    options = parser.parse_args()
    out = (options.out or ROOT / "runs" / options.data).resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.chdir(ROOT)
    empty(out)
    demo = Demo(track_of(options.data), out.relative_to(ROOT) if out.is_relative_to(ROOT) else out)
    demo.learn()
    figures = demo.students()
    response = demo.serve()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak_gb = usage / (1 << 30 if sys.platform == "darwin" else 1 << 20)
    seconds = time.monotonic() - demo.started
    print(f"\ndone in {seconds:.0f} s; largest process {peak_gb:.2f} GB; everything is in {out}")
    if options.record:
        cost = {"seconds": round(seconds), "largest_process_gb": round(peak_gb, 2), "started_s": demo.started_s}
        record(options.record, command=f"make demo DATA={options.data}", figures=figures, cost=cost)
    result = {key: figures[key] for key in ("split", "ne", "auc", "transfer_ratio", "best_ne") if key in figures}
    print(json.dumps({"data": options.data, **result, "rank": {"embedding": response["embedding"]}}))


class Demo:
    """The steps, in order, over one work folder."""

    def __init__(self, track: Track, out: Path) -> None:
        self.track, self.out, self.number, self.started = track, out, 0, time.monotonic()
        self.started_s: dict[str, int] = {}
        self.log, self.teacher, self.refreshed = out / "log", out / "teacher", out / "teacher_refreshed"
        self.space = Path()

    def learn(self) -> None:
        """The log, the teacher, and what the teacher says of the days after its training."""
        module, *options = self.track.source
        self.step("the interaction log", module, *options, "--out", self.log)
        train = ("foundation.train", "--log", self.log)
        self.step("GEM, the teacher", *train, "--recipe", self.track.teacher, "--out", self.teacher)
        self.step(
            "its representations of the days after, each available ten minutes after its impression",
            *("precompute.backfill", "--log", self.log, "--checkpoint", self.teacher),
            *("--representations", self.out / "representations"),
        )
        (self.space,) = (entry.parent for entry in (self.out / "representations").glob("*/log.json"))
        refreshed = ("--from", self.teacher, "--period", "student", "--out", self.refreshed)
        self.step("the refreshed teacher, continued to the day before validation", *train, *refreshed)

    def students(self) -> dict[str, Any]:
        """Students in every arm, compared with both teachers; the figures of the comparison."""
        predictions = []
        for name, checkpoint in (("frozen", self.teacher), ("refreshed", self.refreshed)):
            file = self.out / f"{checkpoint.name}.parquet"
            options = ("--log", self.log, "--checkpoint", checkpoint, "--predictions", file)
            self.step(f"the {name} teacher on the validation day", "foundation.evaluate", *options)
            predictions += ["--teacher", f"{name}={file}"]
        runs = ("--log", self.log, "--representations", self.space, "--out", self.out / "students")
        size = ("--recipe", self.track.student, "--seeds", self.track.seeds)
        self.step("students: base, kd, loopfm, kd_loopfm and the placebo", "student_models.train", *runs, *size)
        compare = ("student_models.evaluate", "--log", self.log, "--runs", self.out / "students")
        figures = self.step("the comparison", *compare, *predictions)
        chosen = ("--run", self.out / "students" / "kd_loopfm" / "seed0", "--log", self.log)
        artifacts = ("--out", self.out / "artifacts")
        self.step("the artifact: ONNX and manifest", "student_models.export", *chosen, *artifacts)
        return figures

    def serve(self) -> dict[str, Any]:
        """Publish to a Valkey of its own, start the server, rank one request, stop both; the response."""
        cache_port, port = free_port(), free_port()
        url = f"redis://127.0.0.1:{cache_port}/0"
        store = ("precompute.valkey", "--port", cache_port, "--dir", self.out / "valkey")
        with self.running("an embedded Valkey", *store, ready=lambda: ping(url)):
            records = ("--representations", self.out / "representations", "--redis-url", url)
            refresh = ("precompute.refresh", "--log", self.log, "--checkpoint", self.teacher)
            self.step("a refresh: nothing new to compute, all users published", *refresh, *records)
            settings = {
                "GEM_MODELS": str(self.out / "artifacts"),
                "GEM_CATALOG": str(self.log / "catalog.arrow"),
                "GEM_REDIS_URL": url,
                "GEM_CLOCK": "request",
                "GEM_PORT": str(port),
                "GEM_METRICS_PORT": "0",
            }
            server = f"http://127.0.0.1:{port}"
            with self.running("the server", "serving", ready=lambda: get(f"{server}/readyz"), settings=settings):
                request = example_request(self.log, self.space)
                file = self.out / "request.json"
                file.write_text(json.dumps(request, indent=1) + "\n")
                self.title("one request")
                print(
                    f"$ curl -s {server}/v1/rank -H 'content-type: application/json' -d @{shlex.quote(str(file))}",
                    flush=True,
                )
                response = post(f"{server}/v1/rank", request)
        show(response)
        return response

    def title(self, text: str) -> None:
        self.number += 1
        elapsed_s = self.started_s[text] = round(time.monotonic() - self.started)
        print(f"\n[{self.number}] {text}  ({elapsed_s} s)", flush=True)

    def step(self, text: str, module: str, *options: object) -> dict[str, Any]:
        """Run one command; its output passes through, but for the last line: the JSON object that is returned."""
        self.title(text)
        command = ["python", "-m", module, *map(str, options)]
        print(f"$ {shlex.join(command)}", flush=True)
        last = ""
        with subprocess.Popen([sys.executable, *command[1:]], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    print(last, end="", flush=True)
                    last = line
            except BaseException:
                process.terminate()
                raise
        code = process.returncode
        if code:
            print(last, end="", flush=True)
            fail(f"step {self.number} ({text}) ended with exit code {code}; its error stands above", code)
        return json.loads(last)

    @contextmanager
    def running(
        self,
        text: str,
        module: str,
        *options: object,
        ready: Callable[[], bool],
        settings: dict[str, str] | None = None,
    ) -> Iterator[None]:
        """A command that runs until the block ends; its output goes to <out>/<module>.log."""
        self.title(text)
        command = ["python", "-m", module, *map(str, options)]
        assignments = "".join(f"{name}={shlex.quote(value)} " for name, value in (settings or {}).items())
        print(f"$ {assignments}{shlex.join(command)}", flush=True)
        output = self.out / f"{module}.log"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, *command[1:]], stdout=file, stderr=file, env={**os.environ, **(settings or {})}
            )
        try:
            deadline = time.monotonic() + START_S
            while not ready():
                if process.poll() is not None or time.monotonic() > deadline:
                    print(output.read_text(), file=sys.stderr)
                    fail(f"step {self.number} ({text}) did not start; its output stands above", process.poll() or 1)
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def empty(out: Path) -> None:
    """Make the work folder, or empty it if it is one; any other folder with content is refused."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARKER).exists():
            fail(f"{out} holds files that are not the demo's; name another folder with --out", 2)
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()


def example_request(log_folder: Path, space: Path) -> dict[str, Any]:
    """A request of the user whose impression was represented last, one second after everything that is published;
    its candidates are the ads that were shown most recently on the same surface."""
    log, rows = read_log(log_folder), RepresentationLog(space).read()
    last = int(np.argmax(rows.visible_ms))
    now_ms = int(rows.visible_ms.max()) + 1_000
    user = str(rows.user_id[last])
    _, impressions = AsOf(rows).histories([user], np.array([now_ms]), 1)
    on_surface = np.flatnonzero((log.surface == rows.surface[last]) & (log.event_ms < now_ms))
    newest = on_surface[np.argsort(log.event_ms[on_surface], kind="stable")][::-1]
    ads = list(dict.fromkeys(str(log.ad_ids[ad]) for ad in log.ad[newest[:1000]]))[:CANDIDATES]
    print(f"\nuser {user} has {impressions[0]} represented impressions", flush=True)
    return {
        "surface": log.schema.surfaces[int(rows.surface[last])],
        "user_id": user,
        "candidates": [{"ad_id": ad} for ad in ads],
        "objective": "ecpm",
        "deadline_ms": 1000,
        "context": {"timestamp_ms": now_ms},
    }


def show(response: dict[str, Any]) -> None:
    """The ranked answer as a table."""
    embedding, model = response["embedding"], response["model"]
    print(f"model {model['name']} {model['version']}, surface {response['surface']}")
    print(
        f"embedding {embedding['status']} from {embedding['source']}, space {embedding['space']}, "
        f"generation {embedding['generation']}, age {embedding['age_s']} s"
    )
    table = Table("rank", "ad", "p", "score (bid x p)", "status")
    for row in response["results"]:
        table.add_row(str(row["rank"]), row["ad_id"], f"{row['p']:.4f}", f"{row['score']:.4f}", row["status"])
    Console().print(table)


def ping(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def get(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (URLError, OSError):
        return False


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except HTTPError as error:
        fail(f"the server answered {error.code}: {error.read().decode()}", 1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code if code > 0 else 1)


if __name__ == "__main__":
    main()
