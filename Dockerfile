# dualscope with the pinned versions and the CPU build of torch, for any user:
#
#   docker build --tag dualscope .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" dualscope run --task embedded-sst2
#
# For NVIDIA GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128, and docker run --gpus all.

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONUNBUFFERED=1
COPY requirements.lock /tmp/
# torch first and by its version, as in the Makefile: its builds are different files. All else has one of the lock's hashes.
RUN sed -n 's/^[# ]*\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' /tmp/requirements.lock > /tmp/versions.txt \
    && pip install --extra-index-url "$TORCH_INDEX" --constraint /tmp/versions.txt torch \
    && pip install --require-hashes --requirement /tmp/requirements.lock \
    && rm /tmp/requirements.lock /tmp/versions.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-deps /tmp/wheels/*.whl && rm -r /tmp/wheels
# Nobody is root in here, and whoever runs it finds a home that can be written: models are kept in /home/dualscope/.cache.
RUN useradd --create-home --uid 1000 dualscope && chmod 777 /home/dualscope && mkdir /data && chmod 777 /data
ENV HOME=/home/dualscope
USER dualscope
WORKDIR /data
ENTRYPOINT ["dualscope"]
CMD ["--help"]
