"""Config of a training run: one YAML file, which is validated as a whole and makes the run reproducible.

Unknown keys are rejected with their location. The module imports in milliseconds, without torch or TRL.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, ValidationError, field_validator, model_validator

from serving.settings.faults import SettingsError, read_yaml_file
from serving.settings.model_access import Frozen
from training.supervised_config import ExpectedRewardConfig, LookUpConfig, WarmStartConfig, WorthConfig

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks that vLLM 0.29 can serve (`max_lora_rank`)."""
Schedule = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup",
    "inverse_sqrt",
]  # fmt: skip
"""Members of `transformers.SchedulerType` that need only the number of steps: no argument, no loss."""
POLYNOMIAL_END = 1e-7
"""Final learning rate of transformers' polynomial schedule. The initial rate must be above it."""
HIGHEST_SEED = 2**32 - 1
"""Highest seed that numpy accepts. The lowest is 0."""


class ScratchConfig(Frozen):
    """A randomly initialized Llama with its own tokenizer. It is for testing the whole training loop, not for
    use.
    """

    hidden: int = Field(default=96, ge=16)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)
    vocabulary: int = Field(default=700, ge=300)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.hidden % (2 * self.heads):  # rotary embeddings rotate pairs of a head's dimensions
            raise ValueError(
                f"hidden must be a multiple of {2 * self.heads} ("
                f"twice the number of heads), but is {self.hidden}"
            )
        return self


class LoraConfig(Frozen):
    """Low-rank adapters on all linear layers. Their rank matters little:
    https://thinkingmachines.ai/blog/lora.
    """

    rank: int = 16
    alpha: int = Field(default=32, gt=0)
    start: str | None = None
    """Folder of an adapter to continue from, with the same rank and alpha. None means a new adapter."""
    kept: float = Field(default=0.0, ge=0, lt=1)
    """Weight of the adapter `start` when the weights after the supervised stages are averaged with it. 0
    means no averaging.

    The average keeps much of what the run taught, and forgets less of what was known before (WiSE-FT, arXiv
    2109.01903).
    """

    @model_validator(mode="after")
    def _check_rank(self) -> Self:
        if self.rank not in LORA_RANKS:
            raise ValueError(
                f"vLLM cannot serve an adapter of rank {self.rank}. Set rank to one of {', '.join(map(str, LORA_RANKS))}"
            )
        if self.kept and not self.start:
            raise ValueError("kept requires start. Set start to the folder of an adapter, or remove kept")
        return self


class ModelConfig(Frozen):
    """The conductor to train: either `path`, which is a folder or a name on the Hugging Face hub, or
    `scratch`.
    """

    path: str | None = None
    scratch: ScratchConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights."""
    mixed_precision: bool = False
    """Whether to multiply matrices in bfloat16, whatever the data type of the weights.

    On a CPU with AVX-512 BF16 or AMX, this reduces the time of a step to a half or a third.
    """
    lora: LoraConfig | None = None
    """LoRA adapters to train. None means that all weights are trained."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("set either path or scratch, and not both")
        return self


class PoolConfig(Frozen):
    """The workers that the conductor plans for."""

    settings: str = Field(min_length=1)
    """A Podium settings file. The same file can serve the conductor."""
    model: str | None = None
    """A name in the settings' `models`, whose limits apply."""
    workers_per_question: int | None = Field(default=None, ge=1)
    """Number of workers drawn for each question (the paper's k of n). None means all of them, in a new
    order.
    """
    shuffle: bool = True
    """Whether to shuffle the workers of a question. If false, its whole team is shown in the order of the
    file.

    A policy that is trained from scratch without shuffling learns the workers' numbers by heart, and cannot
    lead another team.
    """
    teams: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Workers that may be used for questions of a source (`Question.source`). Other sources use all
    workers.
    """
    cards: dict[str, str] = Field(default_factory=dict)
    """Recorded set from which the workers' cards are written, such as `recorded:FILE?part=train`, by the
    source of the questions.

    In training, each team's cards get a random wording. In measuring, they have the wording of `podium
    cards`.
    """

    @field_validator("teams")
    @classmethod
    def _check_teams(cls, teams: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for source, team in teams.items():
            if twice := next((name for name in team if team.count(name) > 1), None):
                raise ValueError(f"{source} lists the worker {twice!r} twice. List each worker once")
        return teams


class AlsoConfig(Frozen):
    """Additional questions. They are named as for `podium eval` (`evaluation.sources`), such as
    `recorded:FILE?part=train`.
    """

    train: str
    held_out: str
    """Questions for measuring the conductor. None of them may be in `train`."""
    share: float = Field(gt=0, lt=1)
    """Share of these questions among all questions, both in training and in measuring."""
    max_chars: int | None = Field(default=None, ge=1)
    """Maximum number of characters of a question in both sets. Longer ones are skipped, because a small
    conductor on a small machine reads slowly.
    """


class QuestionsConfig(Frozen):
    """The questions to train on."""

    source: Literal["skills", "requests", "jsonl"] = "skills"
    path: str | None = None
    """A JSONL file with one question per line, in the fields of `training.jsonl_questions.QuestionLine`."""
    held_out_path: str | None = None
    """A second file in the same format, for measuring before and after the training. It is never trained
    on.
    """
    seed: int = Field(default=0, ge=0)
    distinct: int | None = Field(default=None, ge=1)
    """Number of different questions. They are repeated in a new order. None means as many as are needed."""
    composite_share: float = Field(default=0.5, ge=0, le=1)
    composite_share_at_first: float | None = Field(default=None, ge=0, le=1)
    """Initial share of composite questions, from which the share grows linearly to `composite_share`. None
    means that the share is constant.
    """
    families: tuple[str, ...] | None = None
    requests_per_team: int = Field(default=1, ge=1)
    """Number of consecutive questions with the same team. They are learned together, so that the team's cards
    are read once.
    """
    longest_request: int | None = Field(default=None, ge=40)
    """Maximum number of characters of a question from the source `requests`. A longer one is drawn again."""
    also: tuple[AlsoConfig, ...] = ()

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if (self.source == "jsonl") != (self.path is not None):
            raise ValueError("path is required for the source jsonl, and not allowed for other sources")
        if self.held_out_path is not None and self.path is None:
            raise ValueError(
                "held_out_path is only allowed for the source jsonl. Remove it, or set source to jsonl"
            )
        if sum(each.share for each in self.also) >= 1:
            raise ValueError(
                "the shares of `also` must sum to less than 1, because the rest is the share of `source`"
            )
        return self


class VllmConfig(Frozen):
    """Generation by vLLM in place of transformers. `server` is `trl vllm-serve` (TRL 1.16) on GPUs of its
    own.
    """

    mode: Literal["colocate", "server"] = "colocate"
    url: str = "http://127.0.0.1:8000"
    memory_share: float = Field(default=0.3, gt=0, lt=1)


class RecursionConfig(Frozen):
    """The paper's second round (3.2, A.1): the policy reads the plan and its outcome, and accepts it or plans
    again.
    """

    discount: float = Field(default=0.25, ge=0, le=1)
    """The weight d. The first plan's reward is (1 - d) times its own reward, plus d times the reward of the
    second round.
    """


class GrpoConfig(Frozen):
    """Group-relative policy optimization (arXiv 2402.03300) without a KL term, as in arXiv 2512.04388,
    A.1.
    """

    steps: int = Field(default=200, ge=0)
    """Number of steps. With 0, there is no GRPO, and the run ends after the supervised stages."""
    questions: int = Field(default=4, ge=1)
    """Number of questions per step."""
    completions: int = Field(default=64, ge=2)
    """Number of completions per question. They form a group, whose mean reward is the baseline."""
    micro_batch: int = Field(default=64, ge=1)
    """Number of completions per forward pass on each device."""
    learning_rate: float = Field(default=1e-6, gt=0)
    schedule: Schedule = "cosine"
    warmup_steps: int = Field(default=6, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    loss: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo"] = "grpo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    temperature: float = Field(default=1.0, gt=0)
    max_plan_tokens: int = Field(default=1024, ge=8)
    usd_weight: float = Field(default=0.0, ge=0)
    """Amount that a dollar of cost subtracts from the reward of a right answer. With 0, as in the paper, cost
    does not count.
    """
    memory: int = Field(default=50_000, ge=0)
    """Number of worker replies to cache. 0 means no cache, which is more accurate if workers sample at a
    temperature.
    """
    concurrency: int = Field(default=64, ge=1)
    """Number of concurrent runs."""
    vllm: VllmConfig | None = None
    recursion: RecursionConfig | None = None
    gradient_checkpointing: bool = False

    @property
    def batch(self) -> int:
        """Number of completions per step, including those of the second round."""
        return self.questions * self.completions * (2 if self.recursion else 1)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.recursion and self.vllm:
            raise ValueError(
                "recursion and vllm cannot be used together, because recursion generates with transformers. "
                "Remove one of them"
            )
        if self.schedule == "polynomial" and self.learning_rate <= POLYNOMIAL_END:
            raise ValueError(
                f"learning_rate must be above {POLYNOMIAL_END:g}, which is the final rate of the polynomial schedule, "
                f"but is {self.learning_rate:g}. Raise it, or set schedule to linear"
            )
        return self


class Config(Frozen):
    """Config of a whole training run."""

    name: str = Field(pattern=r"^\w[\w.-]*$")
    """Name of the run, and of its folder in build/training."""
    seed: int = Field(default=0, ge=0, le=HIGHEST_SEED)
    model: ModelConfig
    pool: PoolConfig
    questions: QuestionsConfig = QuestionsConfig()
    look_up: LookUpConfig | None = None
    warm_start: WarmStartConfig | None = None
    expected_reward: ExpectedRewardConfig | None = None
    worth: WorthConfig | None = None
    """How the warm start and the expected-reward stage judge a worker on questions other than requests.

    None means that the warm start judges by running random plans, and the expected-reward stage by a single
    answer.
    """
    grpo: GrpoConfig = GrpoConfig()
    held_out: int = Field(default=200, ge=0)
    """Number of questions that measure the conductor before and after the training, half of them composite. 0
    means no measurement.
    """
    checkpoint_every: int = Field(default=20, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _check_look_up(self) -> Self:
        if self.look_up and not (self.warm_start and self.warm_start.fields[0] == "needs"):
            raise ValueError(
                "look_up requires that `needs` is the first of warm_start.fields. "
                "Add it there, or remove look_up"
            )
        return self

    @model_validator(mode="after")
    def _check_expected_reward(self) -> Self:
        if self.expected_reward and not self.warm_start:
            raise ValueError("expected_reward requires warm_start. Add warm_start, or remove expected_reward")
        return self


def load(path: str | Path) -> Config:
    """Read a training config, or what it changes in its `base`. The SettingsError locates every error."""
    data, _ = read_yaml_file(path, "training config")
    if not isinstance(data, dict) or "base" not in data:
        return parse(cast(object, data), str(path))
    changes = cast(dict[str, Any], data)
    base_path = Path(path).parent / str(changes.pop("base"))
    base, _ = read_yaml_file(base_path, "training config")
    if not isinstance(base, dict) or "base" in base:
        raise SettingsError(
            f"{base_path} cannot be the base of {path}. A base must be a mapping without the key `base`."
        )
    return parse(_merge(cast(object, base), changes), str(path))


def _merge(base: Any, changes: Any) -> Any:
    """Return `base` with `changes`. Mappings are merged at every depth, and other values are replaced."""
    if not isinstance(base, dict) or not isinstance(changes, dict):
        return changes
    merged = cast(dict[str, Any], base)
    return merged | {
        key: _merge(merged.get(key), value) for key, value in cast(dict[str, Any], changes).items()
    }


def parse(data: object, where: str = "config") -> Config:
    """Validate parsed YAML, which messages call `where`. The SettingsError locates every error."""
    try:
        return Config.model_validate(data)
    except ValidationError as exc:
        faults = " ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'config'}: {fault['msg'].removeprefix('Value error, ')}."
            for fault in exc.errors(include_url=False)[:8]
        )
        raise SettingsError(f"{where} is not a valid training config. {faults}") from exc
