"""From settings to a listening server: one process, or several workers under uvicorn's supervisor."""

import os
import signal
import socket
import sys
import tempfile
from functools import partial

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from contracts.errors import InputError
from serving import logs
from serving.app import create_app
from serving.service import build
from serving.settings import Settings
from serving.telemetry import all_workers, serve_metrics, single_process

KEEP_ALIVE_S = 65
"""A load balancer that keeps idle connections for up to a minute must never reuse one that we have just closed."""
BACKLOG = 256


def serve(settings: Settings) -> None:
    """Serve until SIGTERM; requests in flight are answered first. InputError where the server cannot start."""
    with _listen(settings.host, settings.port) as sock:
        host, port = sock.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        several = settings.workers > 1
        app = partial(make_app, settings, url)
        config = uvicorn.Config(
            app if several else app(),  # inside uvicorn a failing factory would end as exit code 3
            factory=several,
            workers=settings.workers,
            access_log=False,
            log_config=None,
            server_header=False,
            ws="none",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=settings.shutdown_grace_s,
        )
        if several:
            _serve_many(settings, config, sock)
            return
        # uvicorn raises the signal again once it has drained; by then all is done, and the exit code is 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        uvicorn.Server(config).run([sock])


def make_app(settings: Settings, url: str) -> FastAPI:
    """The application of one worker process; called in that process."""
    service = build(settings, stream=sys.stderr)
    logs.install(service.writer)
    if settings.metrics_port and settings.workers == 1:
        serve_metrics(single_process(service.telemetry), host=settings.host, port=settings.metrics_port)
    labels = ", ".join(sorted({model.label for model in service.ranker.models.values()}))

    def announce() -> None:
        sys.stdout.write(f"ready: {url} serves {labels} for {', '.join(sorted(service.ranker.models))}\n")
        sys.stdout.flush()

    return create_app(service, on_ready=announce)


def _serve_many(settings: Settings, config: uvicorn.Config, sock: socket.socket) -> None:
    """Several workers. Their metrics are summed in this process, so every scrape sees all of them."""
    build(settings, stream=sys.stderr)  # a bad artifact or catalogue ends here, not in a restart loop of workers
    with tempfile.TemporaryDirectory(prefix="gem-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # prometheus_client has no other way to be told
        if settings.metrics_port:
            serve_metrics(all_workers(folder), host=settings.host, port=settings.metrics_port)
        Multiprocess(config, [sock]).run()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is found before models are loaded."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = error.strerror or error
        raise InputError(f"GEM_HOST, GEM_PORT: {host}:{port} cannot be bound ({reason}); take another") from error
    sock.set_inheritable(True)
    return sock
