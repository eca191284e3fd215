# Podium for the nodes of a Ray cluster: one image for head, router and GPU nodes (cluster/kubernetes/gpu/), so that all run the same Ray.
#
#   docker buildx imagetools inspect rayproject/ray-llm:2.60.0-py312-cu130 --format '{{.Manifest.Digest}}'
#   make wheel
#   docker build -f cluster/ray.Dockerfile --build-arg BASE=rayproject/ray-llm@sha256:... -t registry.example.com/podium-ray:0.2.0 .
#   docker build -f cluster/ray.Dockerfile --build-arg BASE=rayproject/ray@sha256:... --build-arg EXTRA= -t podium-ray:0.2.0-cpu .
#
# BASE must be a digest, which the first command prints: a tag can be moved, so a build from a tag fails. The last command builds an
# image without vLLM and CUDA (base: rayproject/ray:2.60.0-py312), which is enough for head and router and has a tenth of the size.
# Packages are installed from requirements/image.lock or image_gpu.lock, each file by its hash. The image contains no key, and none is
# needed to build it. Weights are downloaded at run time, into the volume /models. The image has not been built:
# tests/cluster/test_dockerfile.py checks this file. cluster/Dockerfile, which has been built, is for one machine or pod.
ARG BASE
FROM ${BASE}
ARG BASE
ARG EXTRA=gpu
RUN printf %s "$BASE" | grep -qE '@sha256:[0-9a-f]{64}$' || { echo "BASE must end with a digest, @sha256:..., and is $BASE" >&2; exit 1; }

# The base's user `ray`, by number, so that Kubernetes can verify that it is not root.
USER root
RUN install -d -o 1000 -g 100 /models /home/ray/podium
USER 1000:100
WORKDIR /home/ray/podium

# Dependencies change rarely, so they have their own layer.
COPY --chown=1000:100 requirements requirements
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/image${EXTRA:+_$EXTRA}.lock
# The wheel has the settings that manifests name as cluster/gpu.yaml, and the console. RAY_SERVE_HAPROXY_BINARY_PATH names the script.
COPY --chown=1000:100 dist/podium-*.whl ./
RUN pip install --no-cache-dir --no-deps podium-*.whl && rm podium-*.whl
COPY --chown=1000:100 cluster/haproxy_guarded.sh cluster/

ENV HF_HOME=/models \
    VLLM_NO_USAGE_STATS=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    RAY_AUTH_MODE=token \
    PYTHONUNBUFFERED=1
VOLUME /models
EXPOSE 8000
# KubeRay, or `docker run ... ray start --head --block`, passes the command. Without one, the image prints Podium's help.
CMD ["podium", "--help"]
