# steadybot in a small image: no root, one volume for its data, a health check.
#   docker build -t steadybot . && docker run -v steadybot:/data -v ./config.yaml:/etc/steadybot/config.yaml:ro steadybot
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv /opt/steadybot \
 && /opt/steadybot/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
COPY bridge bridge
COPY channels channels
RUN /opt/steadybot/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps .

FROM python:3.12-slim
COPY --from=build /opt/steadybot /opt/steadybot
RUN useradd --system --uid 10001 --home-dir /data steadybot && mkdir /data && chown steadybot /data
USER steadybot
WORKDIR /data
VOLUME /data
ENV PATH=/opt/steadybot/bin:$PATH PYTHONUNBUFFERED=1
# The lock file is held exactly as long as the bot lives.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
  CMD ["python", "-c", "import fcntl, sys; f = open('/data/data/steadybot.lock')\ntry:\n fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError:\n sys.exit(0)\nsys.exit(1)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["steadybot"]
CMD ["run", "-c", "/etc/steadybot/config.yaml"]
