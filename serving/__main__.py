"""`python -m serving`: the ranking server, until SIGTERM."""

import typer

from contracts.command import run
from serving.server import serve
from serving.settings import load_settings

app = typer.Typer(add_completion=False)


@app.command()
def main() -> None:
    """Serve POST /v1/rank. Settings are environment variables: GEM_MODELS, GEM_CATALOG, GEM_REDIS_URL, GEM_HOST,
    GEM_PORT and others, all of them in .env.example."""
    serve(load_settings())


if __name__ == "__main__":
    run(app)
