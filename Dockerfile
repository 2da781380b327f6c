# Two images from one tree.
#   docker build --target serve -t gem-serve .   the online path: no torch inside
#   docker build --target jobs  -t gem-jobs .    training, refresh and the other offline commands

FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 10001 gem
WORKDIR /app

FROM base AS source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY contracts contracts
COPY events events
COPY foundation foundation
COPY precompute precompute
COPY student_models student_models
COPY serving serving
COPY loadtests loadtests

FROM source AS serve
RUN pip install -c constraints.txt '.[serve]' && python -c "import importlib.util as u; assert u.find_spec('torch') is None"
WORKDIR /home/gem
USER gem
# the server binds 127.0.0.1 unless told otherwise; inside a container the port mapping decides who reaches it
ENV GEM_HOST=0.0.0.0
EXPOSE 8000 9464
HEALTHCHECK --interval=5s --timeout=2s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=1)"]
ENTRYPOINT ["python", "-m", "serving"]

FROM source AS jobs
RUN pip install -c constraints.txt '.[train,load]'
WORKDIR /home/gem
USER gem
ENTRYPOINT ["python", "-m"]
CMD ["precompute.status", "--help"]
