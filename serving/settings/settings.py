"""Settings of a server: one YAML file, validated as a whole and immutable. The Serve config sets the number
of replicas.

Unknown keys are rejected with their place. API keys are only named (`api_key_env`, `api_key_file`), never
written here. This module imports in milliseconds: no Ray, no torch, no SDK.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from conductor.errors import did_you_mean
from conductor.run.team import TEAM
from serving.settings.faults import At, describe, read_yaml_file
from serving.settings.faults import SettingsError as SettingsError
from serving.settings.sections import (
    BaselineSettings,
    BatchSettings,
    CacheSettings,
    ConductorSettings,
    ConversationSettings,
    HttpSettings,
    LimitSettings,
    ModelSettings,
    PromptSettings,
    RouterSettings,
    StepSettings,
    StoreSettings,
    TelemetrySettings,
)
from serving.settings.webhooks import WebhookSettings
from serving.settings.workers import Frozen, VllmSettings, WorkerSettings, chats


class Settings(Frozen):
    """Complete settings of one Podium server."""

    conductor: ConductorSettings | None = None
    """Model that writes the plans, and how Podium calls it. If null, Podium serves only workflows and
    workers."""
    workers: tuple[WorkerSettings, ...] = Field(min_length=1)
    """All models that Podium calls, including the conductor's model."""
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    """Model names that clients can request, and whose answers the conductor plans. Each name can have its own
    limits."""
    workflows: dict[str, tuple[StepSettings, ...]] = Field(default_factory=dict)
    """Fixed plans. Podium serves each of them as a model under its name."""
    prompts: PromptSettings = PromptSettings()
    """Replacements for the built-in prompts."""
    limits: LimitSettings = LimitSettings()
    """Limits of one router replica."""
    http: HttpSettings = HttpSettings()
    """Accepted hosts and origins, and limits for slow clients."""
    router: RouterSettings = RouterSettings()
    """Number and size of the router replicas."""
    store: StoreSettings = StoreSettings()
    """Storage of keys, budgets, the ledger and the records of runs."""
    cache: CacheSettings = CacheSettings()
    """Cache of answers to repeated requests."""
    conversation: ConversationSettings = ConversationSettings()
    """How Podium handles the turns of one conversation and their prompt cache."""
    baseline: BaselineSettings | None = None
    """Model with which Podium compares the costs of its answers. If null, it does not compare them."""
    batches: BatchSettings = BatchSettings()
    """Files and batches, for requests that are not urgent."""
    webhooks: WebhookSettings = WebhookSettings()
    """Webhook that reports when a given share of a budget is spent."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """Contents of traces."""

    @property
    def pool(self) -> list[str]:
        """Names that a plan may use, in the order of the file."""
        return [worker.name for worker in self.workers if worker.in_pool and chats(worker)]

    def worker(self, name: str) -> WorkerSettings:
        """Return the worker of that name.

        Raises:
            KeyError: there is none.
        """
        return {worker.name: worker for worker in self.workers}[name]

    def owner_of(self, worker: VllmSettings) -> VllmSettings:
        """Return the worker whose engine serves `worker`: itself, unless it has a `deployment`."""
        owner = self.worker(worker.deployment) if worker.deployment else worker
        assert isinstance(owner, VllmSettings), "`_consistent` checks this"
        return owner

    def adapters_of(self, owner: str) -> list[str]:
        """Return the addresses of all adapters on the engine of the vllm worker `owner`."""
        sharing = [w for w in self.workers if isinstance(w, VllmSettings) and self.owner_of(w).name == owner]
        return list(dict.fromkeys(worker.adapter for worker in sharing if worker.adapter))

    @field_validator("baseline", mode="before")
    @classmethod
    def _name_baseline(cls, value: object) -> object:
        return {"model": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [worker.name for worker in self.workers]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise At(
                    f"Two workers are named {name!r}, but the names of workers must be unique",
                    "workers",
                    index,
                )
        duplicates = (
            set(names) & (self.models.keys() | self.workflows.keys())
            | self.models.keys() & self.workflows.keys()
        )
        if duplicates:
            section = "models" if min(duplicates) in self.models else "workflows"
            raise At(
                f"The name {min(duplicates)!r} is used twice, but workers, models and workflows must have different names",
                section,
                min(duplicates),
            )
        for place, mentioned in self.mentions():
            if mentioned not in names:
                hint = did_you_mean(mentioned, names)
                message = f"{place} names the worker {mentioned!r}, which does not exist. Known workers: {', '.join(names)}"
                raise At(f"{message}.{hint}" if hint else message, *_loc(place))
        self._check_chats()
        if self.models and self.conductor is None:
            raise At(
                "`models` require a `conductor`. Set `conductor.worker` to the worker that writes the plans",
                "models",
            )
        for worker in self.workers:
            if isinstance(worker, VllmSettings) and worker.deployment is not None:
                owner = self.worker(worker.deployment)
                if not isinstance(owner, VllmSettings) or owner.deployment is not None:
                    message = f"worker {worker.name!r}: deployment must name a vllm worker with its own engine, which {worker.deployment!r} is not"
                    raise At(message, "workers", worker.name, "deployment")
        self._check_engines()
        self._check_workflows()
        self._check_pool()
        return self

    def mentions(self) -> Sequence[tuple[str, str]]:
        """Return the places in the settings that name a worker, each with the name."""
        names: list[tuple[str, str]] = []
        if self.conductor:
            names.append(("conductor.worker", self.conductor.worker))
            if self.conductor.fallback:
                names.append(("conductor.fallback", self.conductor.fallback))
        for worker in self.workers:
            names += [(f"worker {worker.name!r}: fallbacks", name) for name in worker.named_fallbacks]
            names += [(f"worker {worker.name!r}: try_first", name) for name in worker.try_first]
            if isinstance(worker, VllmSettings) and worker.deployment:
                names.append((f"worker {worker.name!r}: deployment", worker.deployment))
        for name, model in self.models.items():
            names += [(f"models.{name}.workers", worker) for worker in model.workers or ()]
        for name, steps in self.workflows.items():
            names += [(f"workflows.{name}", step.worker) for step in steps]
        return names

    def _check_chats(self) -> None:
        for place, mentioned in self.mentions():
            if not chats(self.worker(mentioned)):
                message = f"{place} names the worker {mentioned!r}, which does not serve chats. Add `chat` to the `serves` of that worker"
                raise At(message, *_loc(place))

    def _check_pool(self) -> None:
        used = [
            (f"models.{name}.workers", worker)
            for name, model in self.models.items()
            for worker in model.workers or ()
        ]
        if self.conductor and self.conductor.fallback:
            used.append(("conductor.fallback", self.conductor.fallback))
        for place, worker in used:
            if worker not in self.pool:
                message = f"{place} names the worker {worker!r}, which plans must not use. Set `in_pool: true` for that worker, or name another one"
                raise At(message, *_loc(place))
        if self.models and not self.pool:
            raise At(
                "`models` require a worker that plans may use. Set `in_pool: true` for a worker that serves chats",
                "models",
            )
        if TEAM in self.pool and any(model.depth for model in self.models.values()):
            message = f"The worker name {TEAM!r} is reserved for nested plans if a model sets `depth`. Rename the worker"
            raise At(message, "workers", TEAM)

    def _check_engines(self) -> None:
        """Reject engines on a CPU with both speculative decoding and adapters: vLLM then takes some of an
        adapter's tokens from the base model (docs/decisions/0068).
        """
        for worker in self.workers:
            if not isinstance(worker, VllmSettings) or worker.scale.gpus:
                continue
            has_adapters = worker.engine.get("enable_lora", bool(self.adapters_of(worker.name)))
            if has_adapters and worker.engine.get("speculative_config"):
                raise At(
                    f"worker {worker.name!r}: engine must not combine `speculative_config` and adapters on a CPU, because vLLM then "
                    "gives wrong answers. Remove one of the two",
                    "workers",
                    worker.name,
                    "engine",
                )

    def _check_workflows(self) -> None:
        for name, steps in self.workflows.items():
            if not steps:
                raise At(f"workflows.{name} must have at least one step", "workflows", name)
            for index, step in enumerate(steps):
                if step.access != "all" and any(not 0 <= read < index for read in step.access):
                    message = f"workflows.{name}[{index}].access must contain only the numbers of earlier steps, counted from 0"
                    raise At(message, "workflows", name, index)


def _loc(place: str) -> tuple[str, ...]:
    """Return the path in the file of a place from `Settings.mentions`."""
    worker, is_worker, field = place.partition("': ")
    if is_worker:
        return "workers", worker.removeprefix("worker '"), field
    section, _, rest = place.partition(".")
    return (section, rest.removesuffix(".workers"), "workers") if section == "models" else (section, rest)


def parse(data: Any, where: str = "The settings", root: yaml.Node | None = None) -> Settings:
    """Validate parsed settings, which errors call `where`, at lines of `root`. The SettingsError has the
    first eight faults.
    """
    try:
        return Settings.model_validate(data)
    except ValidationError as exc:
        faults = "; ".join(describe(fault, data, root, Settings) for fault in _faults(exc))
        raise SettingsError(f"{where} cannot be used: {faults}{'' if faults.endswith('?') else '.'}") from exc


def load(path: str | Path) -> Settings:
    """Read a settings file. A relative `store.path` is resolved against the file's folder, because
    replicas run in a different working directory.

    Raises:
        SettingsError: the file is missing, not YAML, or invalid.
    """
    data, root = read_yaml_file(path, "settings file")
    settings = parse(data, str(path), root)
    if settings.store.path is None:
        return settings
    own = Path(path).absolute().parent / settings.store.path.expanduser()
    return settings.model_copy(update={"store": settings.store.model_copy(update={"path": own})})


def _faults(exc: ValidationError) -> list[ErrorDetails]:
    """Return the first eight faults, without lists that invalid entries make too short."""
    faults = exc.errors(include_url=False)
    inner = [fault for fault in faults if fault["type"] != "too_short"]
    return (inner or faults)[:8]
