"""Parameters that the providers' models accept, by model name. Read in November 2026 from

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
from urllib.parse import urlsplit

from serving.settings.accepts import Accepts
from serving.settings.workers import ApiSettings, OpenAISettings

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
    return REASONING.overlay(Accepts.model_validate(own))


def _gpt(**own: object) -> Accepts:
    return GPT.overlay(Accepts.model_validate(own))


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
    return CLAUDE.overlay(Accepts.model_validate(own))


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
    (r"claude-3-7", SAMPLED_CLAUDE.overlay(Accepts(temperature_with_top_p=True, json_schema=False))),
    (r"claude-opus-4-1", SAMPLED_CLAUDE.overlay(Accepts(json_schema=False, max_output_tokens=32_000))),
    (r"claude-(opus|sonnet|haiku)-4-5", SAMPLED_CLAUDE),
    (
        r"claude-(opus|sonnet)-4-6",
        SAMPLED_CLAUDE.overlay(Accepts(efforts=("none", "low", "medium", "high", "max"), prefill=False)),
    ),
    (r"claude-opus-4-[7-9]", _claude(efforts=TO_MAX, default_effort="none")),
    (
        r"claude-opus-4",
        SAMPLED_CLAUDE.overlay(
            Accepts(temperature_with_top_p=True, json_schema=False, max_output_tokens=32_000)
        ),
    ),
    (r"claude-sonnet-4", SAMPLED_CLAUDE.overlay(Accepts(temperature_with_top_p=True, json_schema=False))),
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
        THINKING_GEMINI.overlay(Accepts(efforts=(), default_effort="none", max_output_tokens=8192)),
    ),
    (
        r"gemini-2\.5-pro",
        THINKING_GEMINI.overlay(Accepts(efforts=("minimal", "low", "medium", "high", "xhigh", "max"))),
    ),
    (r"gemini-2\.5", THINKING_GEMINI.overlay(Accepts(efforts=TO_MAX, default_effort="medium"))),
    (r"gemini-.*pro|gemini-3\.7-flash", THINKING_GEMINI.overlay(Accepts(efforts=("low", "medium", "high")))),
    (r"", THINKING_GEMINI),
)

FAMILIES = {"openai": OPENAI, "anthropic": ANTHROPIC, "gemini": GEMINI}


def accepts_by_name(kind: str, model: str) -> Accepts:
    """Return what `model` accepts when called through the API of `kind`. An unknown model behind OpenAI's API
    is assumed to accept everything.
    """
    for pattern, accepts in FAMILIES.get(kind, ()):
        if re.search(rf"(^|[/.:])({pattern})", model):
            return accepts
    return Accepts()


def accepts_of(worker: ApiSettings) -> Accepts:
    """Return what the worker's model accepts: what is known of it, with the settings taking precedence."""
    accepts = accepts_by_name(worker.kind, worker.like or worker.model)
    if isinstance(worker, OpenAISettings):
        if _is_openais(worker):
            accepts = accepts.overlay(Accepts(samplers=()))
        if worker.api == "responses":
            accepts = accepts.overlay(Accepts(stop_sequences=0, samplers=(), seed="none", prefill=False))
    return accepts.overlay(worker.accepts)


def _is_openais(worker: OpenAISettings) -> bool:
    """Return whether the worker calls OpenAI or Azure. They reject unknown fields with an error."""
    host = urlsplit(worker.base_url).hostname or "" if worker.base_url else "api.openai.com"
    return worker.service == "azure" or host == "api.openai.com" or host.endswith(".api.openai.com")
