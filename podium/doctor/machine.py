"""The machine: disk, memory, open files, GPUs. Nothing is changed, nothing is started."""

from __future__ import annotations

import importlib.metadata as metadata
import resource
import shutil
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path

from cluster.local.uv import ROOT
from podium.doctor.finding import Finding, ServerCase, ServerPlace, ok, warning, worst, wrong
from serving.settings.workers import VllmSettings

LEAST_FREE_BYTES = 500_000_000
"""Logs of Ray, a store that grows, the compiled code of an engine."""
FULL_FOR_RAY = 0.95
"""Above that Ray writes no object to disk, and warns once a second."""
ROUTER_BYTES = 1_600_000_000
"""Ray's own processes, its proxy and one router, on an idle machine."""
ENGINE_BYTES = 900_000_000
"""vLLM's code and torch in one engine, beside weights and cache."""
USUAL_CACHE_GIB = 4.0
"""What vLLM's CPU build takes where VLLM_CPU_KVCACHE_SPACE is not set."""
FEW_FILES, TOO_FEW_FILES = 8192, 1024
"""Each connection is an open file, and each process of Ray has about 100."""


def check_disk(case: ServerCase) -> Finding:
    """There is room where the server writes."""
    places = {"the checkout": ROOT, "temporary files": Path(tempfile.gettempdir()), "the store": _store(case)}
    return worst([_room(what, place) for what, place in places.items() if place])


def check_memory(case: ServerCase) -> Finding:
    """The engines of the settings fit beside Ray."""
    import psutil

    needed = ROUTER_BYTES + sum(_engine_bytes(engine) for engine in _engines(case))
    memory = psutil.virtual_memory()
    total, free = min(memory.total, _memory_limit_bytes()), min(memory.available, _memory_limit_bytes())
    said = f"The settings need about {_gb(needed)} of memory; {_gb(free)} of {_gb(total)} are free."
    remedy = (
        "Serve a smaller model, lower scale.env.VLLM_CPU_KVCACHE_SPACE or scale.min_replicas, or take a larger machine; "
        "models behind an API need none of it: `make serve SETTINGS=cluster/api.yaml`."
    )
    if needed > total:
        return wrong(said, remedy)
    return warning(said, f"End other programs. {remedy}") if needed > free else ok(said)


def check_open_files(_: ServerPlace) -> Finding:
    """A server may hold a connection for each client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FEW_FILES:
        return ok(f"A process may open {'any number of' if soft == resource.RLIM_INFINITY else soft} files.")
    most = "65536" if hard == resource.RLIM_INFINITY else str(hard)
    said = f"A process may open {soft} files, and each connection is one."
    remedy = f"Run `ulimit -n {most}` in the shell that starts the server; for good, LimitNOFILE= of its systemd unit or nofile in /etc/security/limits.conf."
    return wrong(said, remedy) if soft < TOO_FEW_FILES else warning(said, remedy)


def check_gpus(case: ServerCase) -> Finding:
    """The GPUs that engines ask for are here."""
    wanted = sum(engine.scale.gpus * max(1, engine.scale.min_replicas) for engine in _engines(case))
    if not wanted:
        return ok("The settings need no GPU.")
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    visible = case.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        here = min(here, len([each for each in visible.split(",") if each.strip()]))
    said = f"The settings need {wanted} GPUs, and {here} are here" + (
        f" (CUDA_VISIBLE_DEVICES is {visible!r})." if visible is not None else "."
    )
    if here >= wanted:
        return check_build(said, {each.name.lower() for each in metadata.distributions()})
    return wrong(
        said,
        "`nvidia-smi` says whether the driver sees them; in a container, start it with `--gpus all`. Without GPUs serve "
        "cluster/local.yaml or cluster/api.yaml. In a Ray cluster they may be on other nodes: `ray status` lists them.",
    )


def check_build(said: str, installed: Collection[str]) -> Finding:
    """The vLLM that is installed can use the GPUs.

    Args:
        said: how many are needed and here.
        installed: names of packages.
    """
    if "vllm-cpu" not in {name.replace("_", "-") for name in installed}:
        return ok(said)
    return wrong(
        f"{said} The vLLM that is installed is the build for CPUs, and uses none.",
        "Install the extra `gpu` in an environment of its own: `pip install '.[gpu]'` in a fresh one, on a machine with the driver.",
    )


def _room(what: str, place: Path) -> Finding:
    try:
        place = next(folder for folder in (place, *place.parents) if folder.exists())
        usage = shutil.disk_usage(place)
        # Opening asks the file system itself: root passes every look at permissions.
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        return wrong(
            f"Nothing can be written under {place} ({what}): {error.strerror}.",
            f"Free some space there, or give this account a folder that it may write to: `df -h {place}` shows how full it is.",
        )
    said = f"{_gb(usage.free)} are free under {place} ({what})"
    if usage.free < LEAST_FREE_BYTES:
        return wrong(
            f"Only {said}.", f"Free some space: `du -xh {place} | sort -h | tail` shows what takes it."
        )
    if what == "temporary files" and usage.used / usage.total > FULL_FOR_RAY:
        remedy = f"Ray keeps no objects on a disk that is so full. Free some space under {place}, or set TMPDIR to a roomier folder."
        return warning(f"{said}, and {usage.used / usage.total:.0%} is taken.", remedy)
    return ok(f"{said}.")


def _store(case: ServerCase) -> Path | None:
    """The folder of a store that is a file."""
    from serving.database.address import StoreError, find_address

    try:
        address = find_address(case.settings.store, case.environment)
    except StoreError:  # `check_store` says so
        return None
    return address.path.parent if address.kind == "sqlite" else None


def _engines(case: ServerCase) -> Iterable[VllmSettings]:
    return (
        worker
        for worker in case.settings.workers
        if isinstance(worker, VllmSettings) and not worker.deployment and not worker.stand_in
    )


def _engine_bytes(engine: VllmSettings) -> int:
    """Of the machine's memory, for the replicas that there are always. With a GPU the cache is on it."""
    from serving.paths import resolve_path

    weights = sum(file.stat().st_size for file in resolve_path(Path(engine.model)).glob("*.safetensors"))
    cache_gib = 0.0 if engine.scale.gpus else _number(engine.scale.env.get("VLLM_CPU_KVCACHE_SPACE"))
    return max(1, engine.scale.min_replicas) * (ENGINE_BYTES + weights + int(cache_gib * 2**30))


def _number(text: str | None) -> float:
    try:
        return float(text or USUAL_CACHE_GIB)
    except ValueError:
        return USUAL_CACHE_GIB


def _memory_limit_bytes() -> int:
    """What this process's control group may use; no bound where it has none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            return int((Path("/sys/fs/cgroup") / name).read_text())
        except (OSError, ValueError):  # there is none, or it says `max`
            continue
    return 2**63


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
