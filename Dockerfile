# Images of the three services, and of `pagewire fetch`: targets cachesvc, gateway, model (all without torch), runnersvc for
# a CPU and runnersvc-gpu for an NVIDIA GPU. Code is the last layer of each, so that a change of code installs no package again.
#
# Torch is what the package index has under the pinned version: on Linux that is a CUDA build of several GB. For the small
# CPU build in runnersvc name an index that has one: PIP_EXTRA_INDEX_URL=... docker compose build. runnersvc-gpu wants the
# CUDA build and never looks there; all that it installs is pinned by constraints-gpu.txt, which is for its Python alone.

ARG BASE_IMAGE=python:3.11-slim
ARG GPU_BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS python
ENV PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PAGEWIRE_CACHE=/var/cache/pagewire
# A new volume takes owner and mode from these directories. Sockets have locks beside them, so their directory is the
# services' alone; all of them run as this one user.
RUN useradd --uid 10001 --user-group --create-home pagewire && \
    install -d -m 0700 -o pagewire -g pagewire /run/pagewire && \
    install -d -m 0755 -o pagewire -g pagewire /var/cache/pagewire /var/cache/pagewire/models
WORKDIR /home/pagewire

# Our own wheel, without its dependencies.
FROM python AS wheel
WORKDIR /src
COPY constraints.txt ./
RUN pip install -q -c constraints.txt hatchling
COPY pyproject.toml README.md ./
COPY protos protos
COPY kernels kernels
COPY servicekit servicekit
COPY cachesvc cachesvc
COPY gateway gateway
COPY runnersvc runnersvc
RUN pip wheel -q --no-deps --no-build-isolation -w /wheel .

# Dependencies alone: pyproject.toml names them, its packages are not here, so what is built from it is empty and goes again.
FROM python AS light
WORKDIR /src
COPY constraints.txt ./
RUN pip install -q -c constraints.txt hatchling
COPY pyproject.toml README.md ./
RUN pip install -q -c constraints.txt --no-build-isolation . && pip uninstall -q -y pagewire

FROM light AS light-gateway
RUN pip install -q -c constraints.txt --no-build-isolation '.[gateway,smg]' && pip uninstall -q -y pagewire

FROM light-gateway AS light-fetch
RUN pip install -q -c constraints.txt --no-build-isolation '.[gateway,fetch]' && pip uninstall -q -y pagewire

FROM python AS torch
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY constraints.txt ./
RUN pip install -q -c constraints.txt hatchling torch
COPY pyproject.toml README.md ./
RUN pip install -q -c constraints.txt --no-build-isolation '.[runner]' && pip uninstall -q -y pagewire

# Triton compiles kernels where they run: each needs a stub in C that launches it, so a compiler is here to stay.
FROM ${GPU_BASE_IMAGE} AS python-gpu
ENV PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PAGEWIRE_CACHE=/var/cache/pagewire TRITON_CACHE_DIR=/var/cache/triton \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility NVIDIA_REQUIRE_CUDA=cuda>=13.0
RUN apt-get update && apt-get install -y -q --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# The user and the directories of `python`, and one more for what is compiled.
RUN useradd --uid 10001 --user-group --create-home pagewire && \
    install -d -m 0700 -o pagewire -g pagewire /run/pagewire && \
    install -d -m 0755 -o pagewire -g pagewire /var/cache/pagewire /var/cache/pagewire/models /var/cache/triton

FROM python-gpu AS torch-gpu
WORKDIR /src
COPY constraints-gpu.txt ./
RUN pip install -q -c constraints-gpu.txt hatchling numpy torch && \
    python -c 'import torch; assert torch.version.cuda == "13.0", torch.__version__'
COPY pyproject.toml README.md ./
RUN pip install -q -c constraints-gpu.txt --no-build-isolation '.[runner]' && pip uninstall -q -y pagewire

FROM light AS cachesvc
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install -q --no-deps /wheel/*.whl
WORKDIR /home/pagewire
USER pagewire
ENTRYPOINT ["python", "-m", "cachesvc"]

FROM light-gateway AS gateway
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install -q --no-deps /wheel/*.whl
WORKDIR /home/pagewire
USER pagewire
EXPOSE 50051 8000
ENTRYPOINT ["python", "-m", "gateway"]

FROM light-fetch AS model
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install -q --no-deps /wheel/*.whl
WORKDIR /home/pagewire
USER pagewire
ENTRYPOINT ["pagewire", "fetch"]

FROM torch AS runnersvc
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install -q --no-deps /wheel/*.whl
WORKDIR /home/pagewire
USER pagewire
ENTRYPOINT ["python", "-m", "runnersvc"]

FROM torch-gpu AS runnersvc-gpu
RUN --mount=type=bind,from=wheel,source=/wheel,target=/wheel pip install -q --no-deps /wheel/*.whl
WORKDIR /home/pagewire
USER pagewire
ENTRYPOINT ["python", "-m", "runnersvc"]
