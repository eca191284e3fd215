"""`inputs.yaml` as values: every number of the simulation, by section with its source, date and kind.

Knows what may be written there, not how it is used. `deployed` reads what the cluster files say.
"""

from collections.abc import Collection
from datetime import date
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from loadtest.capacity import deployed

INPUTS = Path(__file__).with_name("inputs.yaml")
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[float, Field(gt=0)]
AtLeast0 = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class InputsError(Exception):
    """The inputs cannot be used; the message says where and why."""


class InputModel(BaseModel):
    """No unknown keys, no change."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sourced(InputModel):
    """A section that says where its numbers come from."""

    source: str = Field(min_length=10)
    date: date
    kind: Literal["measured", "published", "derived", "assumed"]


class Tokens(InputModel):
    """A lognormal number of tokens; `cv` is its standard deviation over its mean."""

    mean: Above0
    cv: AtLeast0 = 0


class SecondLook(Sourced):
    """Requests with `rounds: 2`: the conductor reads the outcome, accepts it, and the answer comes whole."""

    share: Share
    written_tokens: Count


class Plans(Sourced):
    """What the conductor writes."""

    steps: dict[int, Share]
    """Number of steps: share of requests with so many."""
    shapes: dict[Literal["chain", "join", "random"], Share]
    """`chain`: each reads the one before; `join`: the last reads all; `random`: each earlier one or not."""
    question_tokens: Tokens
    system_tokens: AtLeast0
    """In every worker's prompt, in addition to the question and what is read."""
    conductor_prompt_tokens: AtLeast0
    """The conductor's static prefix."""
    prefix_cached: Share
    """The share of that prefix that is cached."""
    step_written_tokens: Tokens
    step_output_tokens: Tokens
    second_look: SecondLook

    @model_validator(mode="after")
    def _shares(self) -> Self:
        for name, shares in (("steps", self.steps), ("shapes", self.shapes)):
            if abs(sum(shares.values()) - 1) > 1e-6:
                raise ValueError(f"the shares of `{name}` make {sum(shares.values()):g}; they must make 1")
        return self


class RouterInputs(Sourced):
    """CPU milliseconds of a router replica, which is one process on one core."""

    cpu_ms_per_request: AtLeast0
    cpu_ms_per_step: AtLeast0
    cpu_ms_per_plan_token: AtLeast0
    """Of the conductor's text, which is parsed while it streams; its call is included."""
    cpu_ms_per_inner_token: AtLeast0
    """Of inner steps and of answers that are not streamed: read, but not sent."""
    cpu_ms_per_answer_token: AtLeast0
    """Sent to the client, each as a chunk of its own."""
    http_ms: AtLeast0
    """Latency on the way in and out without other traffic; not work of the router."""
    machine: str
    replicas_per_machine: Count
    replicas: Count
    """From the cluster files."""

    def cpu_ms(
        self, *, steps: int, plan_tokens: int, inner_tokens: int, answer_tokens: int, streamed: bool
    ) -> float:
        """Of one request: steps that run, and tokens of the conductor, of inner steps and of the last one."""
        answer_ms = self.cpu_ms_per_answer_token if streamed else self.cpu_ms_per_inner_token
        tokens_ms = plan_tokens * self.cpu_ms_per_plan_token + inner_tokens * self.cpu_ms_per_inner_token
        return self.cpu_ms_per_request + steps * self.cpu_ms_per_step + tokens_ms + answer_tokens * answer_ms


class EngineSpec(Sourced):
    """A vLLM replica: the duration of a decoding step by batch size, and how fast prompts are read."""

    machine: str
    gpus: Count
    """Of one replica."""
    workers: tuple[str, ...] = Field(min_length=1)
    """The workers in the cluster files that this engine serves."""
    max_num_seqs: Count
    """From the cluster files."""
    memory_seqs: Count
    """Sequences for which the cache has room beside the weights."""
    step_ms: dict[int, Above0]
    """Batch size: milliseconds of a step, in which each sequence gets a token. Linear in between."""
    prefill_tokens_per_s: Above0
    chunk_tokens: Count = 2048
    """Of prompts, read in one step with the decoding sequences."""
    cold_start_s: AtLeast0
    """From the scaling decision to the first token: machine, image, weights, engine."""
    max_replicas: Count
    """Of all its workers; from the cluster files."""

    @model_validator(mode="after")
    def _table(self) -> Self:
        if 1 not in self.step_ms or max(self.step_ms) < self.batch:
            raise ValueError(
                "`step_ms` must say what 1 sequence takes, and what a full batch takes: the lesser of "
                f"`max_num_seqs` and `memory_seqs`, {self.batch}"
            )
        return self

    @property
    def batch(self) -> int:
        """The largest number of sequences that are decoded together."""
        return min(self.max_num_seqs, self.memory_seqs)

    def step_s(self, sequences: int) -> float:
        """Seconds of a step with so many sequences in it."""
        counts = sorted(self.step_ms)
        return float(np.interp(sequences, counts, [self.step_ms[count] for count in counts])) / 1000


class ApiSpec(Sourced):
    """A provider's model."""

    first_token_s: Above0
    """The median; the distribution is lognormal."""
    first_token_sigma: AtLeast0
    """Of its logarithm."""
    token_ms: AtLeast0
    usd_per_mtok_in: AtLeast0
    usd_per_mtok_out: AtLeast0
    requests_per_minute: Above0 | None = None
    tokens_per_minute: Above0 | None = None
    """Input and output together, or output alone where only that is limited."""
    counted: Literal["all", "output"] = "all"


class WorkerInputs(InputModel):
    """A member of the pool: `share` of the steps; served by an engine or an API of that name."""

    share: Share
    engine: str | None = None
    api: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.engine is None) == (self.api is None):
            raise ValueError("a worker has an `engine` or an `api`, and not both")
        return self


class Machine(Sourced):
    """A rented machine."""

    bought: Literal["spot", "on_demand"]
    usd_per_hour: Above0
    """From the cluster's price list."""
    gpus: int = Field(ge=0)


class Autoscaling(Sourced):
    """Ray Serve's autoscaling of one deployment."""

    target_ongoing_requests: dict[str, Above0]
    look_back_period_s: Above0
    interval_s: Above0
    upscale_delay_s: AtLeast0
    downscale_delay_s: AtLeast0


class Ceiling(Sourced):
    """The most that anybody has shown."""

    most: Above0


class Sizing(Sourced):
    """The utilisation of each station at the planned rate."""

    router_utilisation: Annotated[float, Field(gt=0, lt=1)]
    engine_utilisation: Annotated[float, Field(gt=0, lt=1)]
    """Of its token throughput at a full batch."""
    slice_rps: Above0
    """Higher rates are simulated as a slice of this rate."""
    measured_s: Above0
    warm_up_s: AtLeast0


class CheckedStep(InputModel):
    """A step of the plan in the real server's script."""

    worker: str
    reads: tuple[int, ...] = ()
    written_tokens: Count
    first_token_s: AtLeast0
    output_tokens: Count
    token_ms: AtLeast0


class CheckedRate(InputModel):
    """The real server at one rate of arrivals; `seed` reproduces the arrivals."""

    rate_rps: Above0
    seed: int
    streamed: bool
    router_cpu_ms: Above0
    proxy_cpu_ms: AtLeast0
    p50_ms: Above0
    p95_ms: Above0
    done_rps: Above0


class CheckedMix(InputModel):
    """Requests of a kind that no cost was fitted to, and the router's CPU for one."""

    streamed: bool
    steps: Count
    inner_tokens: int
    answer_tokens: int
    router_cpu_ms: Above0


class Checked(Sourced):
    """A real run, to validate the simulation: `python -m loadtest.capacity.calibrate`."""

    duration_s: Above0
    conductor_token_ms: AtLeast0
    steps: tuple[CheckedStep, ...]
    mixed: tuple[CheckedMix, ...]
    rates: tuple[CheckedRate, ...]


class DeployedFiles(InputModel):
    """Files of this checkout that say what is deployed and what it costs."""

    settings: str
    serve: str
    prices: str


class Inputs(InputModel):
    """All of it."""

    deployed: DeployedFiles
    plans: Plans
    router: RouterInputs
    other_routers: dict[str, dict[str, AtLeast0]] = {}
    """Other costs of the router by name, for comparison."""
    conductor: str
    engines: dict[str, EngineSpec]
    apis: dict[str, ApiSpec]
    workers: dict[str, WorkerInputs]
    machines: dict[str, Machine]
    autoscaling: Autoscaling
    ceilings: dict[str, Ceiling]
    sizing: Sizing
    checked: Checked | None = None

    @model_validator(mode="after")
    def _names(self) -> Self:
        _check_name("conductor", self.conductor, self.engines)
        _check_name("router.machine", self.router.machine, self.machines)
        for name, engine in self.engines.items():
            _check_name(f"engines.{name}.machine", engine.machine, self.machines)
        for name, worker in self.workers.items():
            known = self.engines if worker.engine else self.apis
            _check_name(f"workers.{name}", worker.engine or worker.api or "", known)
        if abs(sum(worker.share for worker in self.workers.values()) - 1) > 1e-6:
            raise ValueError("the shares of `workers` must make 1")
        return self


def _check_name(where: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"`{where}` names {name!r}, which does not exist; there are: {', '.join(known)}")


def load(path: Path = INPUTS) -> Inputs:
    """Read the inputs.

    Raises:
        InputsError: the file does not exist, is not YAML, or its content is invalid.
    """
    try:
        return Inputs.model_validate(deployed.complete(yaml.safe_load(path.read_text())))
    except OSError as exc:
        remedy = "Name an inputs file, or omit --inputs."
        raise InputsError(f"{exc.filename or path} cannot be read: {exc.strerror}. {remedy}") from exc
    except yaml.YAMLError as exc:
        raise InputsError(f"{path} is not YAML: {exc}") from exc
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in exc.errors()[:5])
        raise InputsError(f"{path}: {problems}") from exc
    except (KeyError, TypeError, ValueError) as exc:
        raise InputsError(f"{path}, with the files under `deployed`: {exc}") from exc
