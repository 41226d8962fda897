# One image for every command of `compactory`.
#
#   docker build -t compactory:0.1.0 .                         with every extra but demo and spark
#   docker build --build-arg EXTRAS=api -t compactory:0.1.0 .  lookups over HTTP alone
#
# It runs as an unprivileged user and writes nothing to its file system: start it with --read-only.

FROM python:3.13-slim-bookworm AS build
ARG EXTRAS=all
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PYTHON_DOWNLOADS=never
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --disable-pip-version-check "$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' constraints.txt)" \
 && uv venv /opt/compactory
COPY pyproject.toml README.md LICENSE ./
COPY store/ store/
COPY connectors/ connectors/
COPY api/ api/
COPY cli/ cli/
COPY sql/ sql/
# The constraints hold hashes too: uv refuses a file that has another one.
RUN uv pip install --python /opt/compactory/bin/python --constraints constraints.txt ".[${EXTRAS}]"

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="compactory" \
      org.opencontainers.image.description="Reference directories at memory speed" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin compactory
COPY --from=build /opt/compactory /opt/compactory
# COMPACTORY_LISTEN holds for `serve` and for the probes of workers. `serve` asks for a token there, or for --no-auth.
ENV PATH=/opt/compactory/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    COMPACTORY_LISTEN=0.0.0.0:8080 \
    COMPACTORY_LOG_FORMAT=json
# Here compactory.toml is looked for.
WORKDIR /etc/compactory
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=4s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/livez', timeout=3)"]
ENTRYPOINT ["compactory"]
CMD ["serve"]
