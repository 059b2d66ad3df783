# The image: `docker build -t gathernd:0.1.0 .`, or `docker compose up`. Python 3.11 is what `make test` runs on.
# For NVIDIA GPUs: `docker build --target gpu -t gathernd:0.1.0-gpu .`. BuildKit leaves out the stages that a target
# does not need.

# The base is named by the digest of its index, which stands for all its platforms: what is built today is built again
# tomorrow. A newer one: `docker buildx imagetools inspect python:3.11-slim-bookworm` shows what the tag means now.
FROM python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3 AS builder

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/gathernd/venv
ENV PATH=/opt/gathernd/venv/bin:$PATH

# Third-party packages first: this layer changes only with the locks.
WORKDIR /src
# LOCK=requirements/otel.lock adds what traces need, requirements/cloud.lock what imports from s3:// need,
# requirements/grpc.lock what gRPC needs, requirements/cluster.lock Ray, for clusters.
ARG LOCK=requirements/runtime.lock
COPY requirements/runtime.lock requirements/cloud.lock requirements/cluster.lock requirements/grpc.lock \
    requirements/otel.lock requirements/build.lock requirements/
RUN pip install --require-hashes -r "$LOCK" -r requirements/build.lock

COPY pyproject.toml LICENSE README.md ./
COPY app app
COPY clients/python clients/python
RUN pip install --no-deps --no-build-isolation ./clients/python . && pip uninstall --yes setuptools

# Compiled kernels, so that a container's first start loads them. Numba's cache index is keyed on the CPU's name and
# features: code compiled for the build machine's own CPU would be found again on that model only, and every other host
# would compile for itself. NUMBA_CPU_NAME and NUMBA_CPU_FEATURES replace both halves of the key and the target. Two
# levels are compiled here: `generic` (features empty), which any CPU of the architecture runs, and x86-64-v3 (AVX2,
# every server CPU since about 2015). The entry point sets the better one that the host has. Compared
# once with code for the very CPU, on an early kernel and a busy two-core machine: x86-64-v3 no slower, generic 17 to
# 34 % slower on rows of 64 float32 and within the noise on wide rows.
# A cache of another Numba, or other kernels, is not used but compiled again, into GATHERND_CACHE_DIR.
COPY deploy/entrypoint.py /opt/gathernd/entrypoint.py
ENV GATHERND_CACHE_DIR=/opt/gathernd/cache
RUN set -eu; \
    for level in generic $([ "$(uname -m)" != x86_64 ] || echo x86-64-v3); do \
        NUMBA_CPU_NAME=$level NUMBA_CPU_FEATURES='' gathernd warm; \
    done; \
    chmod -R a+rX /opt/gathernd


# The same with CuPy and the CUDA libraries that it needs, all from the lock: the host gives a driver (525 or newer) and
# the NVIDIA container toolkit, so a CUDA base image would bring everything a second time.
FROM builder AS builder-gpu

COPY requirements/gpu.lock requirements/
RUN pip install --require-hashes -r requirements/gpu.lock && chmod -R a+rX /opt/gathernd


FROM python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3 AS runtime

RUN install -d -o 10001 -g 10001 -m 0750 /var/lib/gathernd /var/cache/gathernd /etc/gathernd

ENV PATH=/opt/gathernd/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    GATHERND_HOST=0.0.0.0 \
    GATHERND_PORT=8080 \
    GATHERND_STORE_DIR=/var/lib/gathernd \
    GATHERND_CACHE_DIR=/var/cache/gathernd

# A number, so that Kubernetes can see that it is not root. The root file system may be read-only: only the two volumes
# and /tmp are written to.
USER 10001:10001
WORKDIR /var/lib/gathernd
VOLUME ["/var/lib/gathernd", "/var/cache/gathernd"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['GATHERND_PORT']), timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["python", "/opt/gathernd/entrypoint.py"]
CMD ["serve"]


FROM runtime AS gpu

COPY --from=builder-gpu /opt/gathernd /opt/gathernd
# What the toolkit is to hand over, and where CuPy keeps the kernels that it compiles.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CUPY_CACHE_DIR=/var/cache/gathernd/cupy


# The last stage is what a build without --target makes.
FROM runtime AS cpu

COPY --from=builder /opt/gathernd /opt/gathernd
