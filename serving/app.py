"""Serve application, for `serve run serving.app:build_app settings=cluster/local.yaml`."""

import asyncio
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ray
from ray.serve import Application

from serving import IS_CHECKOUT, edge, resolve_path
from serving.clients import find_faults
from serving.edge.policy import HttpPolicy
from serving.lora.adapters import AdapterError, name_of, verify
from serving.lora.compatibility import MAX_LORA_RANK, check, tensors_of_model
from serving.settings.faults import in_file
from serving.settings.keys import absent_workers, without_workers
from serving.settings.overrides import check_conductor_key
from serving.settings.price_table import with_known_prices
from serving.settings.settings import Settings, SettingsError
from serving.settings.source import SettingsSource
from serving.settings.workers import VllmSettings
from serving.telemetry.spans import EXPORTER

os.environ.setdefault("RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH", EXPORTER)
os.environ.setdefault("RAY_SERVE_TRACING_SAMPLING_RATIO", "1.0")
os.environ.setdefault(edge.HOOK, edge.IN_PROXY)


def build_app(args: dict[str, Any]) -> Application:
    """Return the Serve application of `settings`, a file's path: the router, and a deployment per vLLM
    engine. `model` replaces that of every local engine, `conductor` the worker that plans.
    """
    return application(args)


def application(args: dict[str, Any], engine: type | None = None) -> Application:
    """Build the application, optionally with another engine class. Serve requires a builder with one
    argument, so `build_app` is separate.
    """
    from serving.deployments.build import engine_deployment, router_deployment

    unknown = args.keys() - {"settings", "model", "conductor"}
    if unknown or "settings" not in args:
        raise SettingsError(
            f"build_app requires settings=FILE and accepts model=NAME and conductor=NAME; got {sorted(unknown) or 'no settings'}."
        )
    path, conductor = resolve_path(Path(args["settings"])), args.get("conductor")
    source = SettingsSource.of(path, args.get("model"), conductor)
    settings = source.read()
    owners = [w for w in settings.workers if isinstance(w, VllmSettings) and w.deployment is None]
    _check_vllm(owners, args["settings"])
    if not ray.is_initialized():
        # Ray starts later and its replicas inherit this environment, so report a missing key now. If Ray is
        # running, its nodes have their own environments, which only the router can check.
        try:
            _check_here(settings, conductor)
        except SettingsError as exc:
            raise in_file(exc, path) from exc
    # The proxies of a Ray that starts later, as with `serve run`, receive no settings.
    os.environ[edge.VARIABLE] = HttpPolicy.of(settings).model_dump_json()
    _check_local_adapters(settings)
    engines = {
        worker.name: engine_deployment(_with_local_folder(worker), settings, engine) for worker in owners
    }
    return router_deployment(settings, engines, source)


def _check_here(settings: Settings, conductor: str | None) -> None:
    """Check that all keys, secrets, plugins and libraries are on this machine, or raise SettingsError."""
    if conductor:
        check_conductor_key(settings, os.environ)
    absent = set(absent_workers(settings, os.environ))
    is_led = settings.conductor is None or settings.conductor.worker not in absent
    # The choice of a substitute for a conductor without a key may depend on prices.
    without_workers(settings if is_led else with_known_prices(settings, os.environ), absent)
    for fault in asyncio.run(find_faults(settings, os.environ)):
        raise fault


def _check_vllm(owners: Sequence[VllmSettings], path: str) -> None:
    """Check that vLLM is installed if needed, as `make setup` does then, or raise SettingsError."""
    for worker in owners:
        if not worker.stand_in and find_spec("vllm") is None:
            remedy = (
                f"Run `make setup SETTINGS={path}` for an engine on CPUs, install the `gpu` extra (pip install '.[gpu]') for GPUs,"
                if IS_CHECKOUT
                else "Use a checkout or Podium's image for an engine on CPUs, install the extra `gpu` for GPUs,"
            )
            raise SettingsError(
                f"Worker {worker.name!r} needs vLLM, which is not installed. {remedy} or use settings without local "
                "models, such as cluster/api.yaml."
            )


HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")


def _with_local_folder(worker: VllmSettings) -> VllmSettings:
    """Replace a local model folder by its absolute path, as replicas have another working directory. Raise
    SettingsError if it is missing or is no model.
    """
    folder = resolve_path(Path(worker.model).expanduser())
    if folder.is_dir():
        return worker.model_copy(update={"model": str(folder.resolve())})
    if worker.model.startswith("models/"):
        raise SettingsError(
            f"The model {worker.model} of worker {worker.name!r} does not exist. Run "
            f"`{'make setup' if IS_CHECKOUT else 'python -m cluster.local.local_models'}` first."
        )
    if not HUB_NAME.fullmatch(worker.model):
        raise SettingsError(
            f"The model {worker.model} of worker {worker.name!r} is neither a local folder nor a hub name such as Qwen/Qwen3-32B."
        )
    return worker


def _check_local_adapters(settings: Settings) -> None:
    """Check that local LoRA adapters exist, match their names and fit, before a replica starts. Raise
    SettingsError.
    """
    for worker in settings.workers:
        if isinstance(worker, VllmSettings) and worker.adapter and "://" not in worker.adapter:
            adapter = resolve_path(Path(worker.adapter).expanduser())
            try:
                _check_adapter(adapter, name_of(worker.adapter), settings.owner_of(worker))
            except AdapterError as exc:
                raise SettingsError(f"Worker {worker.name!r}: {exc.message}") from exc


def _check_adapter(adapter: Path, name: str, owner: VllmSettings) -> None:
    verify(adapter, name)
    if not owner.stand_in:
        model = resolve_path(Path(owner.model).expanduser())
        base = tensors_of_model(model) if model.is_dir() else None
        check(adapter, int(owner.engine.get("max_lora_rank", MAX_LORA_RANK)), base)
