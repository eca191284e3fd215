"""Providers that enforce their published parameter rules, and reject a request in their own words.

Written from the providers' pages and from reported errors, not from `serving/settings/known_models.py`, which these
rules test:

* OpenAI: https://developers.openai.com/api/docs/guides/reasoning, .../structured-outputs; errors:
  huggingface/smolagents#1671, anomalyco/opencode#4451, BerriAI/litellm#18921, community.openai.com/t/1341049,
  explodinggradients/ragas#2418.
* Anthropic: https://platform.claude.com/docs/en/models/sonnet-5-5/migration-guide,
  .../build-with-claude/structured-outputs, .../extended-thinking; errors: BerriAI/litellm#3286,
  SalesforceAIResearch/MCP-Universe#49, agentjido/req_llm#706, mnfst/modelparams.dev#214.
* Google: https://ai.google.dev/api/generate-content#generationconfig; errors: continuedev/continue#2702 and #7849.

A message that no page shows follows the style of its neighbours. Models that are not in the tables return 404.
Reasoning models spend reasoning tokens first, out of the same limit as the answer's.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.wires.server import Answer, Request

Json = dict[str, Any]
THOUGHT_TOKENS = {
    "none": 0,
    "minimal": 200,
    "low": 1500,
    "medium": 3000,
    "high": 6000,
    "xhigh": 9000,
    "max": 9000,
}
"""Tokens spent on thinking per level. A plan or an answer takes 300 more."""
ANSWER_TOKENS = 300


class Refused(Exception):
    """A rejected request, with the provider's message and error fields."""

    def __init__(self, message: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.answer = Answer(status=status, error=message, error_code=code)


@dataclass(frozen=True)
class OpenAIModel:
    """One row of OpenAI's documentation."""

    efforts: tuple[str, ...] = ()
    default: str = "none"
    sampling: str = "always"
    stop: int = 4
    most: int = 16_384
    schema: bool = True


FROM_LOW = ("low", "medium", "high", "xhigh", "max")
OPENAI = {
    "gpt-6.1-sol": OpenAIModel(FROM_LOW, "medium", "never", 0, 128_000),
    "gpt-6-astra": OpenAIModel(FROM_LOW, "medium", "never", 0, 128_000),
    "gpt-6-luna": OpenAIModel(("none", *FROM_LOW), "medium", "at none", 0, 128_000),
    "gpt-5.6-terra": OpenAIModel(("none", *FROM_LOW), "medium", "at none", 0, 128_000),
    "gpt-5.5": OpenAIModel(("none", *FROM_LOW[:-1]), "medium", "at none", 0, 128_000),
    "gpt-5.2": OpenAIModel(("none", *FROM_LOW[:-1]), "none", "at none", 0, 128_000),
    "gpt-5.1": OpenAIModel(("none", "low", "medium", "high"), "none", "at none", 0, 128_000),
    "gpt-5": OpenAIModel(("minimal", "low", "medium", "high"), "medium", "never", 0, 128_000),
    "gpt-5-mini": OpenAIModel(("minimal", "low", "medium", "high"), "medium", "never", 0, 128_000),
    "o4-mini": OpenAIModel(("low", "medium", "high"), "medium", "never", 0, 100_000),
    "o3": OpenAIModel(("low", "medium", "high"), "medium", "never", 0, 100_000),
    "gpt-4.1": OpenAIModel(most=32_768),
    "gpt-4o": OpenAIModel(),
    "gpt-4-turbo": OpenAIModel(most=4096, schema=False),
}
OPENAI_FIELDS = {
    "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed",
    "reasoning_effort", "response_format",
}  # fmt: skip


def openai(model_of: Callable[[str], str] = lambda name: name) -> Callable[[Request], Answer]:
    """Return OpenAI's Chat Completions. `model_of` returns the model of a deployment name."""

    def respond(request: Request) -> Answer:
        return _answered(lambda: _openai(request.body, model_of(request.body["model"])))

    return respond


def _openai(body: Json, name: str) -> Answer:
    model = OPENAI.get(name)
    if model is None:
        raise Refused(f"The model `{name}` does not exist.", "model_not_found", 404)
    for unknown in sorted(body.keys() - OPENAI_FIELDS):
        raise Refused(f"Unrecognized request argument supplied: {unknown}")
    effort = _openai_effort(body, name, model)
    _check_openai_sampling(
        body, model.sampling == "always" or (model.sampling == "at none" and effort == "none")
    )
    _check_openai_stop(body.get("stop") or [], model)
    form = body.get("response_format")
    if form is not None:
        if not model.schema:
            raise Refused(
                "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
            )
        _check_openai_schema(form["json_schema"]["schema"], form["json_schema"]["name"])
    return _written(body, _openai_limit(body, model), effort, "length")


def _openai_effort(body: Json, name: str, model: OpenAIModel) -> str:
    """Return the reasoning level, or raise Refused."""
    effort = body.get("reasoning_effort")
    if effort is not None and not model.efforts:
        raise Refused("Unrecognized request argument supplied: reasoning_effort")
    if effort is not None and effort not in model.efforts:
        values = ", ".join(repr(value) for value in model.efforts)
        raise Refused(
            f"Unsupported value: '{effort}' is not supported with the '{name}' model. Supported values are: {values}.",
            "unsupported_value",
        )
    return effort or model.default


def _check_openai_sampling(body: Json, may_sample: bool) -> None:
    for field, most in (("temperature", 2), ("top_p", 1)):
        value = body.get(field)
        if value is not None and value != 1 and not may_sample:
            raise Refused(
                f"Unsupported value: '{field}' does not support {value} with this model. Only the default (1) value is supported.",
                "unsupported_value",
            )
        if value is not None and not 0 <= value <= most:
            raise Refused(f"Invalid '{field}': decimal above maximum value. Expected a value <= {most}.")


def _check_openai_stop(stop: list[str], model: OpenAIModel) -> None:
    if stop and not model.stop:
        raise Refused(
            "Unsupported parameter: 'stop' is not supported with this model.", "unsupported_parameter"
        )
    if len(stop) > model.stop:
        raise Refused(
            f"Invalid 'stop': array too long. Expected an array with maximum length {model.stop}, "
            f"but got an array with length {len(stop)} instead."
        )


def _openai_limit(body: Json, model: OpenAIModel) -> int:
    """Return the token limit of the answer, or raise Refused."""
    if "max_tokens" in body and model.efforts:
        raise Refused(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
            "unsupported_parameter",
        )
    longest: int = body.get("max_completion_tokens") or body.get("max_tokens") or model.most
    if longest > model.most:
        raise Refused(
            f"max_tokens is too large: {longest}. This model supports at most {model.most} completion tokens, "
            f"whereas you provided {longest}."
        )
    return longest


def _check_openai_schema(schema: Json, name: str) -> None:
    for node in _nodes(schema):
        if node.get("type") == "object":
            if node.get("additionalProperties") is not False:
                raise Refused(
                    f"Invalid schema for response_format '{name}': 'additionalProperties' is required to be supplied and to be false."
                )
            if sorted(node.get("required", ())) != sorted(node["properties"]):
                raise Refused(
                    f"Invalid schema for response_format '{name}': 'required' is required to be supplied and to be an array "
                    "including every key in properties."
                )
        permitted = {
            "type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "$ref", "$defs",
            "description", "title", "pattern", "format", "multipleOf", "minimum", "maximum", "minItems", "maxItems",
            "exclusiveMinimum", "exclusiveMaximum",
        }  # fmt: skip
        for keyword in sorted(node.keys() - permitted):
            raise Refused(f"Invalid schema for response_format '{name}': '{keyword}' is not permitted.")


@dataclass(frozen=True)
class ClaudeModel:
    """One row of Anthropic's documentation."""

    thinking: tuple[str, ...]
    efforts: tuple[str, ...] = ()
    default: str = "none"
    sampling: bool = False
    both: bool = False
    most: int = 128_000
    schema: bool = True


ALL_CLAUDE = ("low", "medium", "high", "xhigh", "max")
CLAUDE = {
    "claude-opus-5-5": ClaudeModel(("adaptive",), ("low", "medium", "high", "max"), "medium"),
    "claude-sonnet-5-5": ClaudeModel(("adaptive", "between_tools"), ("low", "medium", "high", "max"), "high"),
    "claude-haiku-5-5": ClaudeModel(("adaptive", "disabled"), ALL_CLAUDE, "medium"),
    "claude-sonnet-5": ClaudeModel(("adaptive", "disabled"), ALL_CLAUDE, "high"),
    "claude-opus-4-7": ClaudeModel(("adaptive", "disabled"), ALL_CLAUDE),
    "claude-sonnet-4-6": ClaudeModel(
        ("adaptive", "enabled", "disabled"), ("low", "medium", "high", "max"), sampling=True, most=64_000
    ),
    "claude-haiku-4-5": ClaudeModel(("enabled", "disabled"), sampling=True, most=64_000),
    "claude-sonnet-4-20250514": ClaudeModel(
        ("enabled", "disabled"), sampling=True, both=True, most=64_000, schema=False
    ),
}
CLAUDE_FIELDS = {
    "model", "messages", "max_tokens", "stream", "system", "stop_sequences", "thinking", "output_config", "temperature", "top_p",
    "top_k",
}  # fmt: skip


def anthropic(request: Request) -> Answer:
    return _answered(lambda: _anthropic(request.body))


def _anthropic(body: Json) -> Answer:
    name = body["model"]
    model = CLAUDE.get(name)
    if model is None:
        raise Refused(f"model: {name}", status=404)
    for unknown in sorted(body.keys() - CLAUDE_FIELDS):
        raise Refused(f"{unknown}: Extra inputs are not permitted")
    longest = body["max_tokens"]
    if longest > model.most:
        raise Refused(
            f"max_tokens: {longest} > {model.most}, which is the maximum allowed number of output tokens for {name}"
        )
    level = _claude_thinking(body, model)
    _check_claude_sampling(body, model, level != "none")
    for stop in body.get("stop_sequences", ()):
        if not stop.strip():
            raise Refused("stop_sequences: each stop sequence must contain non-whitespace")
    form = body.get("output_config", {}).get("format")
    if form is not None:
        if not model.schema:
            raise Refused("output_config.format: structured outputs are not supported on this model.")
        _check_claude_schema(form["schema"])
    return _written(body, longest, level, "max_tokens")


def _claude_thinking(body: Json, model: ClaudeModel) -> str:
    """Return the thinking level, or raise Refused."""
    thinking, effort = body.get("thinking"), body.get("output_config", {}).get("effort")
    if thinking is not None and thinking["type"] not in model.thinking:
        raise Refused(
            f'"thinking.type.{thinking["type"]}" is not supported for this model. Use "thinking.type.adaptive" and '
            '"output_config.effort" to control thinking behavior.'
        )
    if thinking is not None and thinking["type"] == "enabled":
        budget = thinking["budget_tokens"]
        if budget < 1024:
            raise Refused("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
        if budget >= body["max_tokens"]:
            raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if effort is not None and not model.efforts:
        raise Refused("This model does not support the effort parameter.")
    if effort is not None and effort not in model.efforts:
        raise Refused(f"output_config.effort: Input should be one of {', '.join(map(repr, model.efforts))}")
    if thinking is None:
        return (effort or model.default) if model.default != "none" else "none"
    if thinking["type"] == "disabled" and effort in ("xhigh", "max"):
        raise Refused("thinking.type.disabled is not supported with this effort level.")
    return (
        "none"
        if thinking["type"] == "disabled"
        else "low"
        if thinking["type"] == "enabled"
        else effort or "high"
    )


def _check_claude_sampling(body: Json, model: ClaudeModel, thinks: bool) -> None:
    fields = [field for field in ("temperature", "top_p") if field in body]
    if not model.sampling:
        for field in fields:
            if body[field] != 1:
                raise Refused(f"`{field}` is deprecated for this model.")
    if "top_k" in body and not model.sampling:
        raise Refused("`top_k` is deprecated for this model.")
    if "top_k" in body and thinks:
        raise Refused("`top_k` must be unset when thinking is enabled or in adaptive mode.")
    if len(fields) == 2 and not model.both:
        raise Refused(
            "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
        )
    if body.get("temperature", 0) > 1:
        raise Refused("temperature: Input should be less than or equal to 1")
    if thinks and body.get("temperature", 1) != 1:
        raise Refused("`temperature` may only be set to 1 when thinking is enabled or in adaptive mode.")
    if thinks and body.get("top_p", 1) < 0.95:
        raise Refused("`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.")


def _check_claude_schema(schema: Json) -> None:
    for node in _nodes(schema):
        kind = node.get("type", "any")
        if kind == "object" and node.get("additionalProperties") is not False:
            raise Refused(
                "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
            )
        refused = {"maxItems", "minimum", "maximum", "minLength", "maxLength", "multipleOf", "uniqueItems"}
        for keyword in sorted(node.keys() & refused):
            raise Refused(
                f"output_config.format.schema: For '{kind}' type, property '{keyword}' is not supported"
            )
        if node.get("minItems", 0) not in (0, 1):
            raise Refused(
                "output_config.format.schema: For 'array' type, 'minItems' values other than 0 or 1 are not supported"
            )


@dataclass(frozen=True)
class GeminiModel:
    """One row of Google's documentation: thinking levels, or the range of a budget."""

    levels: tuple[str, ...] = ()
    budget: tuple[int, int] | None = None
    may_stop: bool = True
    default: str = "high"


GEMINI = {
    "gemini-3.1-pro-preview": GeminiModel(("LOW", "MEDIUM", "HIGH")),
    "gemini-3.8-flash": GeminiModel(("MINIMAL", "LOW", "MEDIUM", "HIGH")),
    "gemini-3.7-flash": GeminiModel(("LOW", "MEDIUM", "HIGH")),
    "gemini-3.5-flash-lite": GeminiModel(("MINIMAL", "LOW", "MEDIUM", "HIGH")),
    "gemini-2.5-pro": GeminiModel(budget=(128, 32_768), may_stop=False),
    "gemini-2.5-flash": GeminiModel(budget=(1, 24_576), default="medium"),
    "gemini-2.0-flash": GeminiModel(default="none"),
}
GEMINI_FIELDS = {
    "temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "responseMimeType", "responseJsonSchema", "thinkingConfig",
}  # fmt: skip
GEMINI_SCHEMA = {
    "$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems", "maxItems",
    "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required",
}  # fmt: skip


def gemini(request: Request) -> Answer:
    match = re.search(r"/models/([^:]+):", request.path)
    return _answered(lambda: _gemini(request.body, match.group(1) if match else request.path))


def _gemini(body: Json, name: str) -> Answer:
    model = GEMINI.get(name)
    if model is None:
        raise Refused(f"models/{name} is not found for API version v1beta.", status=404)
    config: Json = body.get("generationConfig", {})
    for unknown in sorted(config.keys() - GEMINI_FIELDS):
        raise Refused(
            f"Invalid JSON payload received. Unknown name \"{unknown}\" at 'generation_config': Cannot find field."
        )
    if len(config.get("stopSequences", ())) > 5:
        raise Refused(
            "* GenerateContentRequest.generation_config.stop_sequences: the number of stop_sequences must not exceed 5.\n"
        )
    seed = config.get("seed", 0)
    if not -(2**31) <= seed < 2**31:
        raise Refused(f"Invalid value at 'generation_config.seed' (TYPE_INT32), {seed}")
    most = 8192 if name.startswith("gemini-2.0") else 65_536
    for field, least, above in (
        ("maxOutputTokens", 1, most + 1),
        ("temperature", 0, 2.0001),
        ("topP", 0, 1.0001),
        ("topK", 1, 2**31),
    ):
        value = config.get(field)
        if value is not None and not least <= value < above:
            raise Refused(
                f"Unable to submit request because it has a {field} value of {value} but the supported range is from "
                f"{least} (inclusive) to {above} (exclusive). Update the value and try again."
            )
    for node in _nodes(config.get("responseJsonSchema", {})):
        for keyword in sorted(node.keys() - GEMINI_SCHEMA):
            raise Refused(
                f"Invalid JSON payload received. Unknown name \"{keyword}\" at 'response_json_schema'."
            )
    level = _gemini_thinking(config.get("thinkingConfig"), model)
    return _written(body, config.get("maxOutputTokens", most), level, "MAX_TOKENS")


def _gemini_thinking(thinking: Json | None, model: GeminiModel) -> str:
    if thinking is None:
        return model.default
    camel = {re.sub(r"_(.)", lambda match: match[1].upper(), key): value for key, value in thinking.items()}
    level, budget = (
        camel.get("thinkingLevel"),
        camel.get("thinkingBudget"),
    )  # JSON of proto3 has both spellings
    if level is not None and level not in model.levels:
        raise Refused(f"Thinking level {level} is not supported for this model.")
    if budget is not None:
        if model.budget is None:
            raise Refused("Thinking budget is not supported for this model.")
        least, most = model.budget
        if not (least <= budget <= most or (budget == 0 and model.may_stop)):
            raise Refused(
                f"The thinking budget {budget} is invalid. Please choose a value between {least} and {most}."
            )
        return "none" if budget == 0 else "low"
    return str(level or model.default).lower()


def _nodes(schema: object) -> list[Json]:
    """Return `schema` and each schema inside it."""
    if not isinstance(schema, dict):
        return []
    inner: list[object] = [
        *schema.get("properties", {}).values(),
        schema.get("items"),
        *schema.get("anyOf", ()),
    ]
    return [schema, *(node for each in inner for node in _nodes(each))]


def _answered(answer: Callable[[], Answer]) -> Answer:
    try:
        return answer()
    except Refused as exc:
        return exc.answer


def _written(body: Json, longest: int, level: str, cut_off: str) -> Answer:
    """Return a plan if JSON is requested, else an answer. Return only thoughts if they use up the limit."""
    thought = THOUGHT_TOKENS[level]
    if longest < thought + ANSWER_TOKENS:
        return Answer(text="", finish=cut_off, output_tokens=longest, reasoning_tokens=min(thought, longest))
    schema = _schema(body)
    text = _plan(schema, json.dumps(body)) if schema else "First line.\n\nThe answer is END four."
    return Answer(text=text, output_tokens=thought + ANSWER_TOKENS, reasoning_tokens=thought)


def _schema(body: Json) -> Json | None:
    """Return the JSON schema of the request. Only plans have one."""
    form = body.get("response_format") or body.get("output_config", {}).get("format") or {}
    inner = form.get("json_schema", form)
    return inner.get("schema") or body.get("generationConfig", {}).get("responseJsonSchema")


def _plan(schema: Json, prompt: str) -> str:
    """Return a plan of at most two steps that the schema or the prompt allows."""
    steps = json.dumps({**schema["properties"]["steps"], "items": None})
    most = re.search(r'maxItems"?: (\d+)', steps) or re.search(r"at most (\d+) steps?", prompt)
    first = {"worker": 0, "subtask": "Find the reason.", "access": []}
    last = {"worker": 1, "subtask": "Answer the question.", "access": [0]}
    plan: Json = {"thinking": "Two steps will do."} if "thinking" in schema["properties"] else {}
    if "accept" in schema["properties"]:
        plan["accept"] = False
    return json.dumps(plan | {"steps": [first, last] if most and int(most.group(1)) > 1 else [first]})
