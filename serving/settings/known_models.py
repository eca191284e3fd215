"""Parameters that a model accepts, and what the providers' models accept, by model name. Read in November 2026 from

* OpenAI: https://developers.openai.com/api/docs/guides/reasoning, .../guides/deployment-checklist (no
  temperature, top_p or logprobs while a model reasons),
  https://learn.microsoft.com/azure/foundry/openai/how-to/reasoning, the API reference of `stop` (openai
  3.52.0) and reported errors: https://github.com/huggingface/smolagents/issues/1671 and /1893
  (`stop`), https://github.com/anomalyco/opencode/issues/4451 (levels of effort),
  https://github.com/BerriAI/litellm/issues/18921 (at most four stop sequences);
* Anthropic: https://platform.claude.com/docs/en/models/sonnet-5-5/migration-guide,
  .../models/sonnet-5/migration-guide, .../build-with-claude/effort, .../structured-outputs,
  https://github.com/BerriAI/litellm/issues/3286 (blank stop sequences);
* Google: https://ai.google.dev/api/generate-content#generationconfig (five stop sequences, a seed of 32
  bits);
* all three, cross-checked: the catalogue of https://modelparams.dev (modelparams 0.0.53).

The first pattern that matches a name applies. A model that is newer than these is assumed to accept what the
newest model of its family accepts.
"""

import re
from collections.abc import Iterable
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from conductor.model.terms import EFFORTS as LEVELS
from serving.settings.model_access import overlay

T = TypeVar("T")

THINKING_TOKENS = {
    "none": 0,
    "minimal": 1024,
    "low": 4096,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 32_768,
}
"""Tokens reserved for thoughts at each level of effort. They are Podium's own estimates: no provider
publishes them."""


class Accepts(BaseModel):
    """Parameters that a model accepts. By default, Podium treats the model as one that accepts everything."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sampling: Literal["always", "unless_thinking", "never"] = "always"
    """When Podium may send `temperature` and `top_p`. With `always`, it may send them in every call. With
    `unless_thinking`, it may send them only in calls without thinking. With `never`, it does not send them.
    """
    max_temperature: float = Field(default=2.0, gt=0)
    """Highest `temperature` that may be sent. If a request sets a higher value, Podium sends
    `max_temperature` instead."""
    temperature_with_top_p: bool = True
    """Allow `temperature` and `top_p` in the same call. If false, only `temperature` is sent."""
    stop_sequences: int = Field(default=16, ge=0)
    """Maximum number of stop sequences that may be sent. If a request has more, Podium itself cuts the answer
    at the remaining ones."""
    blank_stop_sequences: bool = True
    """Allow stop sequences that consist only of white space."""
    seed: Literal["int64", "int32", "none"] = "int64"
    """Values of `seed` that may be sent: signed integers of 64 bits or of 32 bits. With `none`, no seed may
    be sent."""
    samplers: tuple[Literal["top_k", "min_p", "repetition_penalty"], ...] = (
        "top_k",
        "min_p",
        "repetition_penalty",
    )
    """Sampling parameters that may be sent. Podium sends them only in calls in which it may also send
    `temperature`. OpenAI's own models accept none of them. Anthropic's and Google's models accept `top_k`."""
    efforts: tuple[str, ...] | None = None
    """Levels of reasoning effort that may be sent. Podium replaces any other level by the nearest of them. If
    the list is empty, no level may be sent. If null, every level may be sent."""
    default_effort: str = "none"
    """Level of reasoning effort that the model uses if a call sets none. With `none`, the model does not
    think."""
    json_schema: bool = True
    """Send the JSON schema of an answer to the model's API. If false, the schema is only in the prompt."""
    prefill: bool = False
    """Let the model continue an assistant message at the end of a conversation. If an answer was interrupted,
    the model can then continue it from its last character. For kind `openai`, this uses vLLM's
    `continue_final_message`. Podium never does this while the model thinks."""
    verbosity: bool = False
    """Allow `verbosity` (kind `openai`)."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Longest answer, in tokens, that a call may ask for. If null, Podium does not know this limit."""
    output_limit_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    """Name of the field that limits the length of an answer (kind `openai`). If null, it is
    `max_completion_tokens` at api.openai.com, and `max_tokens` elsewhere."""

    def effort(self, level: str | None) -> str | None:
        """Return the level to send: `level`, the nearest that the model knows, or None."""
        if level is None or self.efforts is None or level in self.efforts:
            return level
        if level not in LEVELS or not self.efforts:
            return None
        index = LEVELS.index(level)
        return min(
            self.efforts,
            key=lambda candidate: (abs(LEVELS.index(candidate) - index), LEVELS.index(candidate)),
        )

    def thinks(self, level: str | None) -> bool:
        return (self.effort(level) or self.default_effort) != "none"

    def thinking_tokens(self, level: str | None) -> int:
        """Return how many tokens a call at `level` may think, in addition to its answer."""
        return THINKING_TOKENS.get(self.effort(level) or self.default_effort, 0)

    def seeds(self, seed: int) -> bool:
        bits = {"int64": 63, "int32": 31, "none": 0}[self.seed]
        return bits > 0 and -(2**bits) <= seed < 2**bits


OPENAI_MODEL = re.compile(r"(^|/)(gpt-\d|chatgpt-|o\d)", re.ASCII)
"""OpenAI's own models, whichever server they are called through."""
REASONING = Accepts(
    sampling="never",
    samplers=(),
    stop_sequences=0,
    efforts=("minimal", "low", "medium", "high"),
    default_effort="medium",
    max_output_tokens=128_000,
    output_limit_field="max_completion_tokens",
)
"""GPT-5, the first version."""
TO_HIGH = ("none", "low", "medium", "high")
TO_XHIGH = (*TO_HIGH, "xhigh")
TO_MAX = (*TO_XHIGH, "max")
"""Levels of effort from GPT-5.1 on, which has no `minimal`."""
GPT = Accepts(stop_sequences=4, samplers=(), efforts=())


def _reasoning(**own: object) -> Accepts:
    return overlay(REASONING, Accepts.model_validate(own))


def _gpt(**own: object) -> Accepts:
    return overlay(GPT, Accepts.model_validate(own))


OPENAI = (
    (r"gpt-oss", Accepts()),  # open weights: it depends on the server
    (r"gpt-5-chat", _gpt(max_output_tokens=16_384, output_limit_field="max_completion_tokens")),
    (r"gpt-5\.\d+-chat", _reasoning(efforts=("medium",))),
    (
        r"gpt-5\.1",
        _reasoning(verbosity=True, sampling="unless_thinking", efforts=TO_HIGH, default_effort="none"),
    ),
    (
        r"gpt-5\.[2-4]",
        _reasoning(verbosity=True, sampling="unless_thinking", efforts=TO_XHIGH, default_effort="none"),
    ),
    (r"gpt-5\.5", _reasoning(verbosity=True, sampling="unless_thinking", efforts=TO_XHIGH)),
    (r"gpt-5\.", _reasoning(verbosity=True, sampling="unless_thinking", efforts=TO_MAX)),
    (r"gpt-5", _reasoning(verbosity=True)),
    (r"gpt-6-(sol|luna)", _reasoning(verbosity=True, sampling="unless_thinking", efforts=TO_MAX)),
    (r"gpt-([6-9]|\d\d)", _reasoning(verbosity=True, efforts=TO_MAX[1:])),
    (r"o[1-9](-|$)", _reasoning(efforts=("low", "medium", "high"), max_output_tokens=100_000)),
    (r"gpt-4\.1", _gpt(max_output_tokens=32_768)),
    (r"gpt-4o-2024-05-13", _gpt(max_output_tokens=4096, json_schema=False)),
    (r"(chat)?gpt-4o", _gpt(max_output_tokens=16_384)),
    (r"gpt-4-turbo|gpt-3\.5", _gpt(max_output_tokens=4096, json_schema=False)),
    (r"gpt-4", _gpt(max_output_tokens=8192, json_schema=False)),
)

CLAUDE = Accepts(
    sampling="never",
    samplers=("top_k",),
    max_temperature=1.0,
    blank_stop_sequences=False,
    seed="none",
    efforts=("low", "medium", "high", "max"),
    default_effort="high",
    max_output_tokens=128_000,
)
"""Newest models: Fable, Mythos, Opus 5.5 and Sonnet 5.5. They always think. Whether all of them accept
`xhigh` is not settled."""


def _claude(**own: object) -> Accepts:
    return overlay(CLAUDE, Accepts.model_validate(own))


SAMPLED_CLAUDE = _claude(
    sampling="unless_thinking",
    temperature_with_top_p=False,
    default_effort="none",
    max_output_tokens=64_000,
    efforts=("none", "low", "medium", "high", "xhigh", "max"),
    prefill=True,
)
"""Models up to 4.5. The worker translates every level into a thinking budget."""

ANTHROPIC = (
    (
        r"claude-(instant|2|3-(opus|sonnet|haiku))",
        _claude(
            sampling="always",
            efforts=(),
            default_effort="none",
            json_schema=False,
            max_output_tokens=4096,
            prefill=True,
        ),
    ),
    (
        r"claude-3-5",
        _claude(
            sampling="always",
            efforts=(),
            default_effort="none",
            json_schema=False,
            max_output_tokens=8192,
            prefill=True,
        ),
    ),
    (r"claude-3-7", overlay(SAMPLED_CLAUDE, Accepts(temperature_with_top_p=True, json_schema=False))),
    (r"claude-opus-4-1", overlay(SAMPLED_CLAUDE, Accepts(json_schema=False, max_output_tokens=32_000))),
    (r"claude-(opus|sonnet|haiku)-4-5", SAMPLED_CLAUDE),
    (
        r"claude-(opus|sonnet)-4-6",
        overlay(SAMPLED_CLAUDE, Accepts(efforts=("none", "low", "medium", "high", "max"), prefill=False)),
    ),
    (r"claude-opus-4-[7-9]", _claude(efforts=TO_MAX, default_effort="none")),
    (
        r"claude-opus-4",
        overlay(
            SAMPLED_CLAUDE, Accepts(temperature_with_top_p=True, json_schema=False, max_output_tokens=32_000)
        ),
    ),
    (r"claude-sonnet-4", overlay(SAMPLED_CLAUDE, Accepts(temperature_with_top_p=True, json_schema=False))),
    (r"claude-haiku-5-5", _claude(efforts=TO_MAX, default_effort="medium")),
    (r"claude-(opus|sonnet)-5(?!-5)", _claude(efforts=TO_MAX)),
    (r"", CLAUDE),
)

THINKING_GEMINI = Accepts(
    stop_sequences=5,
    samplers=("top_k",),
    seed="int32",
    efforts=("minimal", "low", "medium", "high"),
    default_effort="high",
    max_output_tokens=65_536,
)
GEMINI = (
    (
        r"gemini-(1|2\.0)",
        overlay(THINKING_GEMINI, Accepts(efforts=(), default_effort="none", max_output_tokens=8192)),
    ),
    (
        r"gemini-2\.5-pro",
        overlay(THINKING_GEMINI, Accepts(efforts=("minimal", "low", "medium", "high", "xhigh", "max"))),
    ),
    (r"gemini-2\.5", overlay(THINKING_GEMINI, Accepts(efforts=TO_MAX, default_effort="medium"))),
    (r"gemini-.*pro|gemini-3\.7-flash", overlay(THINKING_GEMINI, Accepts(efforts=("low", "medium", "high")))),
    (r"", THINKING_GEMINI),
)

READ_PDFS = {
    "openai": r"^(gpt-4o|gpt-4\.1|gpt-5|gpt-[6-9]|o1$|o1-20|o3|o4)",
    "anthropic": r"claude-(3-[57]|opus|sonnet|haiku|[4-9])",
    "gemini": r"gemini-",
}
"""Models that read PDFs, by kind. From https://developers.openai.com/api/docs/guides/pdf-files,
https://platform.claude.com/docs/en/build-with-claude/pdf-support and
https://ai.google.dev/gemini-api/docs/document-processing.
"""
CALL_TOOLS = (
    r"(^|/)gpt-([4-9]|oss)",
    r"(^|/)o[1-9](-|$)",
    r"claude-",
    r"gemini-",
    r"(^|/)deepseek-",
    r"(^|/)grok-[2-9]",
    r"(^|/)mistral-(large|medium|small)",
)
"""Models that are known to call tools, by name."""

CONTEXT_TOKENS: tuple[tuple[str, int | None], ...] = (
    (r"gpt-oss", None),  # open weights: it depends on the server
    (r"gpt-5[.\d]*-chat", 128_000),
    (r"gpt-5\.3(?!-codex)", 128_000),
    (r"gpt-5\.4-(mini|nano)", 400_000),
    (r"gpt-5\.5", 1_000_000),
    (r"gpt-(5\.[4-9]|[6-9]|\d\d)", 1_050_000),
    (r"gpt-5", 400_000),
    (r"o1-(mini|preview)", 128_000),
    (r"o[134](-|$)", 200_000),
    (r"gpt-4\.1", 1_047_576),
    (r"(chat)?gpt-4o|gpt-4-(turbo|vision|1106|0125)", 128_000),
    (r"gpt-4-32k", 32_768),
    (r"gpt-4(-0|$)", 8192),
    (r"gpt-3\.5-turbo", 16_385),
    (r"claude-(instant|2(?!\.1))", 100_000),
    (r"claude-(opus|sonnet)-4[-.][6-9]", 1_000_000),
    (r"claude-(fable|mythos)", 1_000_000),
    (r"claude-(opus|sonnet|haiku)-([5-9]|\d\d)(?!\d)", 1_000_000),
    (r"claude-(2|3|4|opus|sonnet|haiku)", 200_000),
    (r"gemini-.*(image|tts|live|embedding)", None),
    (r"gemini-1\.5-pro", 2_097_152),
    (r"gemini-(1\.5|[2-9])", 1_048_576),
)
"""Context lengths in tokens, by model name. From genai-prices 0.2.3, https://platform.claude.com/docs/en/models,
https://developers.openai.com/api/docs/models and https://ai.google.dev/gemini-api/docs/models (November 2026). Claude
Sonnet 4 and 4.5 accept more with a beta header, which is not counted."""

FAMILIES = {"openai": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI}


def accepts_by_name(kind: str, model: str) -> Accepts:
    """Return what `model` accepts through the API of `kind`. Unknown OpenAI models accept everything."""
    return _find(FAMILIES.get(kind, ()), model) or Accepts()


def context_tokens_by_name(model: str) -> int | None:
    """Return the context length of `model` in tokens, or None if it is unknown."""
    return _find(CONTEXT_TOKENS, model)


def _find(rows: Iterable[tuple[str, T]], model: str) -> T | None:
    """Return the value of the first pattern that the name of `model` begins with, also after its provider's name."""
    return next((value for pattern, value in rows if re.search(rf"(^|[/.:])({pattern})", model)), None)
