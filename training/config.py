"""The config of a training run: one YAML, validated as a whole, frozen. A run is reproducible from it alone.

Unknown keys are rejected with their place. Imports in milliseconds: no torch, no TRL.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from serving.settings.access import Frozen
from serving.settings.settings import SettingsError
from training.supervised_config import ExpectedRewardConfig, LookUpConfig, WarmStartConfig, WorthConfig

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM 0.29 serves (`max_lora_rank`)."""
Schedule = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
]
"""Those of `transformers.SchedulerType` that need a number of steps, and neither arguments nor a loss."""
POLYNOMIAL_END = 1e-7
"""Where transformers' polynomial schedule ends; it refuses to start below."""
HIGHEST_SEED = 2**32 - 1
"""numpy takes none beyond, and none below 0."""


class ScratchConfig(Frozen):
    """A Llama from scratch, with a tokenizer of its own: for a test of the whole loop, not for use."""

    hidden: int = Field(default=96, ge=16)
    layers: int = Field(default=4, ge=1)
    heads: int = Field(default=4, ge=1)
    vocabulary: int = Field(default=700, ge=300)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.hidden % (2 * self.heads):  # rotary embeddings turn a head's numbers in pairs
            raise ValueError(
                f"heads {self.heads} does not divide hidden {self.hidden} into parts of an even size; "
                f"take a hidden that is a multiple of {2 * self.heads}, or another number of heads"
            )
        return self


class LoraConfig(Frozen):
    """Low-rank adapters on all linear layers; rank matters little: https://thinkingmachines.ai/blog/lora."""

    rank: int = 16
    alpha: int = Field(default=32, gt=0)
    start: str | None = None
    """The folder of an adapter to go on from, of the same rank and alpha; None: a new one."""
    kept: float = Field(default=0.0, ge=0, lt=1)
    """The share of `start` in what the supervised stages leave: the mean of both, weight by weight, has much of what the
    run taught and forgets less of what was known before (WiSE-FT, arXiv 2109.01903). 0: none.
    """

    @model_validator(mode="after")
    def _check_rank(self) -> Self:
        if self.rank not in LORA_RANKS:
            raise ValueError(f"rank {self.rank} cannot be served by vLLM; take one of {LORA_RANKS}")
        if self.kept and not self.start:
            raise ValueError("kept is a share of start; name the adapter to go on from, or leave kept out")
        return self


class ModelConfig(Frozen):
    """The conductor to train: `path`, a folder or a name on the hub, or `scratch`."""

    path: str | None = None
    scratch: ScratchConfig | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights."""
    mixed_precision: bool = False
    """Multiply matrices in bfloat16 whatever the weights are. On a CPU with AVX-512 BF16 or AMX a step takes
    half to a third of the time.
    """
    lora: LoraConfig | None = None
    """None: all weights are trained."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.path is None) == (self.scratch is None):
            raise ValueError("give either path or scratch")
        return self


class PoolConfig(Frozen):
    """The workers that the conductor leads."""

    settings: str = Field(min_length=1)
    """A Podium settings file: the one that serves."""
    model: str | None = None
    """A name in its `models`; its limits hold."""
    workers_per_question: int | None = Field(default=None, ge=1)
    """Workers drawn for each question (the paper's k of n); None: all, in a new order."""
    shuffle: bool = True
    """False: all of a question's team in the order of the file, for a policy from nothing that learns numbers
    by heart. It could lead no other team.
    """
    teams: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """By a question's source (`Question.source`), the workers that may be used for it; else all of them."""
    cards: dict[str, str] = Field(default_factory=dict)
    """By a question's source, the recorded set by which its workers' cards are written, such as
    `recorded:FILE?part=train`: in training in words drawn for each team, in measuring as `podium cards` does.
    """

    @field_validator("teams")
    @classmethod
    def _check_teams(cls, teams: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for source, team in teams.items():
            if twice := next((name for name in team if team.count(name) > 1), None):
                raise ValueError(f"{source} has {twice!r} twice; name each worker once")
        return teams


class AlsoConfig(Frozen):
    """More questions, named as for `podium eval` (`evaluation.sources`): `recorded:FILE?part=train`."""

    train: str
    held_out: str
    """What the conductor is measured on; must not overlap with `train`."""
    share: float = Field(gt=0, lt=1)
    """Of all questions, in training and measuring."""
    max_chars: int | None = Field(default=None, ge=1)
    """Longer questions are left out of both: a small conductor on a small machine reads slowly."""


class QuestionsConfig(Frozen):
    """What is asked."""

    source: Literal["skills", "requests", "jsonl"] = "skills"
    path: str | None = None
    """Of the JSONL: one question a line, with the fields of `training.jsonl_questions.QuestionLine`."""
    held_out_path: str | None = None
    """A second file of the same kind, whose questions are measured before and after and never trained on."""
    seed: int = Field(default=0, ge=0)
    distinct: int | None = Field(default=None, ge=1)
    """Number of different questions, asked again in a new order when used up; None: as many as are needed."""
    composite_share: float = Field(default=0.5, ge=0, le=1)
    composite_share_at_first: float | None = Field(default=None, ge=0, le=1)
    """The share grows linearly from this one; None: it is constant."""
    families: tuple[str, ...] | None = None
    requests_per_team: int = Field(default=1, ge=1)
    """Questions to each drawn team, one after the other. Examples of one team are learned from together, and
    its cards are read once.
    """
    longest_request: int | None = Field(default=None, ge=40)
    """In characters, of `requests`: what is longer is drawn again."""
    also: tuple[AlsoConfig, ...] = ()

    @model_validator(mode="after")
    def _check_path(self) -> Self:
        if (self.source == "jsonl") != (self.path is not None):
            raise ValueError("path goes with source jsonl, and only with it")
        if self.held_out_path is not None and self.path is None:
            raise ValueError("held_out_path goes with source jsonl, and only with it")
        if sum(each.share for each in self.also) >= 1:
            raise ValueError(
                "the shares of `also` leave nothing to the questions of `source`; "
                "they must be less than 1 together"
            )
        return self


class VllmConfig(Frozen):
    """Generation by vLLM, not transformers. `server` is `trl vllm-serve` (TRL 1.16), on its own GPUs."""

    mode: Literal["colocate", "server"] = "colocate"
    url: str = "http://127.0.0.1:8000"
    memory_share: float = Field(default=0.3, gt=0, lt=1)


class RecursionConfig(Frozen):
    """The paper's further round (3.2, A.1): the policy reads plan and outcome, accepts or plans again."""

    discount: float = Field(default=0.25, ge=0, le=1)
    """The first plan's reward is (1 - discount) times its own and discount times that of the round after."""


class GrpoConfig(Frozen):
    """Group-relative policy optimization (arXiv 2402.03300) without KL, as in arXiv 2512.04388, A.1."""

    steps: int = Field(default=200, ge=0)
    """0: none; the run ends with what it learned from examples."""
    questions: int = Field(default=4, ge=1)
    """A step."""
    completions: int = Field(default=64, ge=2)
    """A question; the group whose mean is the baseline."""
    micro_batch: int = Field(default=64, ge=1)
    """Completions that go through the model at once on each device."""
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
    """Reward subtracted from right answers for each dollar; 0, as in the paper: none."""
    memory: int = Field(default=50_000, ge=0)
    """Workers' replies that are cached; 0: none, which is truer where workers sample at a temperature."""
    concurrency: int = Field(default=64, ge=1)
    """Runs at once."""
    vllm: VllmConfig | None = None
    recursion: RecursionConfig | None = None
    gradient_checkpointing: bool = False

    @property
    def batch(self) -> int:
        """Completions a step, those of the second round included."""
        return self.questions * self.completions * (2 if self.recursion else 1)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.recursion and self.vllm:
            raise ValueError(
                "recursion generates by itself: leave grpo.vllm out, or leave grpo.recursion out"
            )
        if self.schedule == "polynomial" and self.learning_rate <= POLYNOMIAL_END:
            raise ValueError(
                f"learning_rate {self.learning_rate:g} is not above {POLYNOMIAL_END:g}, "
                "where the polynomial schedule ends; raise it, or take schedule linear"
            )
        return self


class Config(Frozen):
    """Everything one run needs."""

    name: str = Field(pattern=r"^\w[\w.-]*$")
    """Also that of its folder in build/training."""
    seed: int = Field(default=0, ge=0, le=HIGHEST_SEED)
    model: ModelConfig
    pool: PoolConfig
    questions: QuestionsConfig = QuestionsConfig()
    look_up: LookUpConfig | None = None
    warm_start: WarmStartConfig | None = None
    expected_reward: ExpectedRewardConfig | None = None
    worth: WorthConfig | None = None
    """What both of these stages judge a worker by, of questions that are no requests; None: by plans that were
    drawn and run, and by one answer.
    """
    grpo: GrpoConfig = GrpoConfig()
    held_out: int = Field(default=200, ge=0)
    """Questions that measure the conductor before and after, half of them composite; 0: none."""
    checkpoint_every: int = Field(default=20, ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _check_look_up(self) -> Self:
        if self.look_up and not (self.warm_start and self.warm_start.fields[0] == "needs"):
            raise ValueError(
                "look_up teaches to find the worker whose card fits what a step needs: "
                "put needs first in warm_start.fields, or leave look_up out"
            )
        return self

    @model_validator(mode="after")
    def _check_expected_reward(self) -> Self:
        if self.expected_reward and not self.warm_start:
            raise ValueError(
                "expected_reward needs warm_start, whose fields and subtask its plans are written by; "
                "add it, or leave expected_reward out"
            )
        return self


def load(path: str | Path) -> Config:
    """Read a training config.

    Raises:
        SettingsError: it is not there, not text, not YAML, or not a config; with the place of every fault.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise SettingsError(f"The training config {path} cannot be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"The training config {path} is not UTF-8: {exc}. Save it as UTF-8.") from exc
    except yaml.YAMLError as exc:
        raise SettingsError(f"{path} is not YAML: {exc}.") from exc
    return parse(data, str(path))


def parse(data: object, where: str = "config") -> Config:
    """Check `data`, as YAML gives it.

    Raises:
        SettingsError: with the place of every fault.
    """
    try:
        return Config.model_validate(data)
    except ValidationError as exc:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in exc.errors(include_url=False)[:8]
        )
        raise SettingsError(f"{where} cannot be used: {faults}.") from exc
