"""Schema of `inputs.yaml`: every number of the simulation, in sections that state source, date and kind.

`deployed` reads the numbers that come from the cluster files.
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
    """The inputs cannot be used. The message says where and why."""


class InputModel(BaseModel):
    """Base of the sections. Sections are immutable and reject unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sourced(InputModel):
    """Section that states the source of its numbers."""

    source: str = Field(min_length=10)
    date: date
    kind: Literal["measured", "published", "derived", "assumed"]


class Tokens(InputModel):
    """Lognormal number of tokens. `cv` is its coefficient of variation: the standard deviation divided by the
    mean.
    """

    mean: Above0
    cv: AtLeast0 = 0


class SecondLook(Sourced):
    """Requests with `rounds: 2`: the conductor reads and accepts the outcome. The answer is not streamed."""

    share: Share
    written_tokens: Count


class Plans(Sourced):
    steps: dict[int, Share]
    """Share of the requests by number of steps."""
    shapes: dict[Literal["chain", "join", "random"], Share]
    """Share of the plans by shape.

    In a `chain`, each step reads the previous one. In a `join`, the last step reads all others. In a `random`
    plan, each step reads a random subset of the earlier ones.
    """
    question_tokens: Tokens
    system_tokens: AtLeast0
    """Tokens in every worker's prompt, in addition to the question and the outputs that it reads."""
    conductor_prompt_tokens: AtLeast0
    """Tokens of the conductor's static prompt prefix."""
    prefix_cached: Share
    """Share of that prefix that is cached."""
    step_written_tokens: Tokens
    step_output_tokens: Tokens
    second_look: SecondLook

    @model_validator(mode="after")
    def _shares(self) -> Self:
        for name, shares in (("steps", self.steps), ("shapes", self.shapes)):
            if abs(sum(shares.values()) - 1) > 1e-6:
                raise ValueError(f"the shares of `{name}` must sum to 1, not {sum(shares.values()):g}")
        return self


class RouterInputs(Sourced):
    """CPU milliseconds of a router replica, which is one process on one core."""

    cpu_ms_per_request: AtLeast0
    cpu_ms_per_step: AtLeast0
    cpu_ms_per_plan_token: AtLeast0
    """CPU milliseconds per token that the conductor writes, which includes its call and parsing."""
    cpu_ms_per_inner_token: AtLeast0
    """CPU milliseconds per token that is read but not sent: of inner steps, and of whole answers."""
    cpu_ms_per_answer_token: AtLeast0
    """CPU milliseconds per token that is sent to the client in a chunk of its own."""
    http_ms: AtLeast0
    """Milliseconds on the way in and out without other traffic. They use no CPU of the router."""
    machine: str
    replicas_per_machine: Count
    replicas: Count
    """Number of router replicas, from the cluster files."""

    def cpu_ms(
        self, *, steps: int, plan_tokens: int, inner_tokens: int, answer_tokens: int, streamed: bool
    ) -> float:
        """Return the CPU milliseconds of one request. Answer tokens are those of the last step."""
        answer_ms = self.cpu_ms_per_answer_token if streamed else self.cpu_ms_per_inner_token
        tokens_ms = plan_tokens * self.cpu_ms_per_plan_token + inner_tokens * self.cpu_ms_per_inner_token
        return self.cpu_ms_per_request + steps * self.cpu_ms_per_step + tokens_ms + answer_tokens * answer_ms


class EngineSpec(Sourced):
    """vLLM replica: the duration of a decoding step by batch size, and the prefill speed."""

    machine: str
    gpus: Count
    """GPUs of one replica."""
    workers: tuple[str, ...] = Field(min_length=1)
    """Workers in the cluster files that this engine serves."""
    max_num_seqs: Count
    """Maximum number of sequences in a batch, from the cluster files."""
    memory_seqs: Count
    """Number of sequences that fit into the KV cache, next to the weights."""
    step_ms: dict[int, Above0]
    """Milliseconds of a decoding step, a token per sequence, by batch size, interpolated linearly."""
    prefill_tokens_per_s: Above0
    chunk_tokens: Count = 2048
    """Number of prompt tokens that are read in one step, together with the sequences that are decoded."""
    max_replicas: Count
    """Maximum number of replicas of all workers that this engine serves, from the cluster files."""

    @model_validator(mode="after")
    def _table(self) -> Self:
        if 1 not in self.step_ms or max(self.step_ms) < self.batch:
            raise ValueError(
                "`step_ms` must have the time for 1 sequence and the time for a full batch, which is the smaller of "
                f"`max_num_seqs` and `memory_seqs` ({self.batch})"
            )
        return self

    @property
    def batch(self) -> int:
        """Largest number of sequences that are decoded together."""
        return min(self.max_num_seqs, self.memory_seqs)

    def step_s(self, sequences: int) -> float:
        counts = sorted(self.step_ms)
        return float(np.interp(sequences, counts, [self.step_ms[count] for count in counts])) / 1000


class ApiSpec(Sourced):
    """Model that a provider serves over its API."""

    first_token_s: Above0
    """Median seconds to the first token, which follow a lognormal distribution."""
    first_token_sigma: AtLeast0
    """Standard deviation of the logarithm of the seconds to the first token."""
    token_ms: AtLeast0
    usd_per_mtok_in: AtLeast0
    usd_per_mtok_out: AtLeast0
    requests_per_minute: Above0 | None = None
    tokens_per_minute: Above0 | None = None
    """Quota of tokens per minute. `counted` says which tokens count."""
    counted: Literal["all", "output"] = "all"


class WorkerInputs(InputModel):
    """Worker of the pool. It gets a `share` of the steps, and the engine or API that it names serves it."""

    share: Share
    engine: str | None = None
    api: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.engine is None) == (self.api is None):
            raise ValueError("a worker must have either `engine` or `api`, and not both")
        return self


class Machine(Sourced):
    bought: Literal["spot", "on_demand"]
    usd_per_hour: Above0
    """Dollars per hour, from the cluster's price list."""
    gpus: int = Field(ge=0)


class Ceiling(Sourced):
    """Highest value that a test has demonstrated."""

    most: Above0


class Sizing(Sourced):
    """Target utilisation of each station at the planned rate."""

    router_utilisation: Annotated[float, Field(gt=0, lt=1)]
    engine_utilisation: Annotated[float, Field(gt=0, lt=1)]
    """Target utilisation of an engine, relative to its token throughput at a full batch."""
    slice_rps: Above0
    """Requests per second of the slice that is simulated in place of a higher rate."""
    measured_s: Above0
    warm_up_s: AtLeast0


class CheckedStep(InputModel):
    """Step of the plan in the real server's script."""

    worker: str
    reads: tuple[int, ...] = ()
    written_tokens: Count
    first_token_s: AtLeast0
    output_tokens: Count
    token_ms: AtLeast0


class CheckedRate(InputModel):
    """Measurements of the real server at one arrival rate. `seed` reproduces the arrivals."""

    rate_rps: Above0
    seed: int
    streamed: bool
    router_cpu_ms: Above0
    proxy_cpu_ms: AtLeast0
    p50_ms: Above0
    p95_ms: Above0
    done_rps: Above0


class CheckedMix(InputModel):
    """Requests that no cost was fitted to, and the router's CPU time for one of them."""

    streamed: bool
    steps: Count
    inner_tokens: int
    answer_tokens: int
    router_cpu_ms: Above0


class Checked(Sourced):
    """Measurements of a real server (`python -m loadtest.capacity.calibrate`), for validating the
    simulation.
    """

    duration_s: Above0
    conductor_token_ms: AtLeast0
    steps: tuple[CheckedStep, ...]
    mixed: tuple[CheckedMix, ...]
    rates: tuple[CheckedRate, ...]


class DeployedFiles(InputModel):
    """Paths of the files in this checkout that define the deployment and its prices."""

    settings: str
    serve: str
    prices: str


class Inputs(InputModel):
    deployed: DeployedFiles
    plans: Plans
    router: RouterInputs
    other_routers: dict[str, dict[str, AtLeast0]] = {}
    """Other sets of router costs by name, for comparison."""
    conductor: str
    engines: dict[str, EngineSpec]
    apis: dict[str, ApiSpec]
    workers: dict[str, WorkerInputs]
    machines: dict[str, Machine]
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
            choices = self.engines if worker.engine else self.apis
            _check_name(f"workers.{name}", worker.engine or worker.api or "", choices)
        if abs(sum(worker.share for worker in self.workers.values()) - 1) > 1e-6:
            raise ValueError("the shares of `workers` must sum to 1")
        return self


def _check_name(where: str, name: str, choices: Collection[str]) -> None:
    if name not in choices:
        raise ValueError(f"`{where}` names {name!r}, which does not exist. Choose from {', '.join(choices)}")


def load(path: Path = INPUTS) -> Inputs:
    """Read the inputs. Raise InputsError if they are missing or invalid."""
    try:
        return Inputs.model_validate(deployed.complete(yaml.safe_load(path.read_text())))
    except OSError as exc:
        remedy = "Pass an existing inputs file, or omit --inputs."
        raise InputsError(f"{exc.filename or path} cannot be read: {exc.strerror}. {remedy}") from exc
    except yaml.YAMLError as exc:
        raise InputsError(f"{path} is not YAML: {exc}") from exc
    except ValidationError as exc:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in exc.errors()[:5])
        raise InputsError(f"{path}: {problems}") from exc
    except (KeyError, TypeError, ValueError) as exc:
        raise InputsError(f"{path}, or a file that it names under `deployed`, is invalid: {exc}") from exc
