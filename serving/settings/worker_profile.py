"""Profile of a worker: what it accepts, does and costs, and where its prompts are sent. It follows from the
worker's kind, its model's name and its settings. No server is contacted.
"""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from conductor.model.call import Call
from conductor.model.operation import Operation
from conductor.model.usage import FREE, Price, dearest_of
from serving.settings.known_models import (
    CALL_TOOLS,
    READ_PDFS,
    Accepts,
    accepts_by_name,
    context_tokens_by_name,
)
from serving.settings.model_access import overlay
from serving.settings.settings import Settings
from serving.settings.workers import (
    API_SETTINGS,
    AnthropicSettings,
    ApiSettings,
    GeminiSettings,
    OpenAISettings,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
    places_of,
)

PENALTIES = frozenset({"frequency_penalty", "presence_penalty", "logit_bias"})
SCRIPTED = frozenset({*PENALTIES, "top_logprobs", "verbosity", "dimensions", "token_prompt"})
_PROVIDERS = re.compile(r"[\w.-]+")
_HUBS = re.compile(r"[\w.-]+/([\w.-]+)")


def accepts_of(worker: ApiSettings) -> Accepts:
    """Return what the worker's model accepts: what is known of it, with the settings taking precedence."""
    accepts = accepts_by_name(worker.kind, worker.like or worker.model)
    if isinstance(worker, OpenAISettings):
        if _is_openais(worker):
            accepts = overlay(accepts, Accepts(samplers=()))
        if worker.api == "responses":
            accepts = overlay(accepts, Accepts(stop_sequences=0, samplers=(), seed="none", prefill=False))
    return overlay(accepts, worker.accepts)


def _is_openais(worker: OpenAISettings) -> bool:
    """Return whether the worker calls OpenAI or Azure. They reject unknown fields with an error."""
    host = urlsplit(worker.base_url).hostname or "" if worker.base_url else "api.openai.com"
    return worker.service == "azure" or host == "api.openai.com" or host.endswith(".api.openai.com")


def reads_pdfs(worker: WorkerSettings) -> bool:
    if isinstance(worker, VllmSettings):
        return False  # vLLM has no input type for PDFs
    if worker.reads_pdfs is not None:
        return worker.reads_pdfs
    match worker:
        case OpenAISettings() if worker.base_url or worker.deployments:
            return False  # the model behind that server is unknown
        case OpenAISettings() | AnthropicSettings() | GeminiSettings():
            return bool(re.search(READ_PDFS[worker.kind], worker.model.lower()))
        case _:
            return False


def calls_tools(worker: WorkerSettings, settings: Settings) -> bool | None:
    """Return whether the worker may be offered tools, or None if unknown; then it may."""
    if isinstance(worker, VllmSettings):
        # without a parser, the engine would return tool calls as text
        has_parser = bool(settings.owner_of(worker).engine.get("tool_call_parser"))
        return worker.calls_tools is not False and has_parser
    if worker.calls_tools is not None:
        return worker.calls_tools
    match worker:
        case ScriptedSettings():
            return True
        case _ if isinstance(worker, API_SETTINGS):
            name = (worker.like or worker.model).lower()
            return True if any(re.search(pattern, name) for pattern in CALL_TOOLS) else None
        case _:
            return None


def prefills(worker: WorkerSettings, settings: Settings, call: Call) -> bool:
    """Return whether the worker continues the prefix of `call`. A model that thinks first does not: its
    thoughts would come after text of its answer.
    """
    match worker:
        case ScriptedSettings():
            return True
        case VllmSettings():
            return not settings.owner_of(worker).engine.get("reasoning_parser")
        case _ if isinstance(worker, API_SETTINGS):
            accepts = accepts_of(worker)
            return accepts.prefill and not accepts.thinks(call.sampling.effort)
        case _:
            return False


def operations_of(worker: WorkerSettings) -> frozenset[Operation]:
    """Return the operations that the worker itself serves."""
    match worker:
        case VllmSettings() | OpenAISettings() | ScriptedSettings():
            return frozenset[Operation](worker.serves)
        case _:
            return frozenset[Operation]({"chat"})


def options_of(worker: WorkerSettings) -> frozenset[str]:
    """Return the `WireOptions` that the worker itself accepts."""
    match worker:
        case ScriptedSettings():
            return SCRIPTED
        case VllmSettings():
            return PENALTIES | {"top_logprobs", "token_prompt"}
        case OpenAISettings():
            accepts = accepts_of(worker)
            if worker.api == "responses":
                return frozenset({"dimensions"}) | ({"verbosity"} if accepts.verbosity else set[str]())
            sampled = frozenset[str]() if accepts.sampling != "always" else PENALTIES | {"top_logprobs"}
            return (
                sampled
                | {"dimensions", "token_prompt"}
                | ({"verbosity"} if accepts.verbosity else set[str]())
            )
        case _:
            return frozenset()


def public_name(worker: WorkerSettings, settings: Settings) -> str:
    """Return the public name of the model for conductors, or "". Folders, Azure deployments, fine-tunes and
    models behind a `base_url` have private names, of which only `like` is shown.
    """
    if isinstance(worker, VllmSettings):
        base = settings.owner_of(worker)
        hub = _HUBS.fullmatch(base.model or "")
        return base.like or (hub[1] if hub and not Path(base.model or "").exists() else "")
    if not isinstance(worker, API_SETTINGS):
        return ""
    is_providers = worker.base_url is None and worker.service is None and _PROVIDERS.fullmatch(worker.model)
    return worker.like or (worker.model if is_providers else "")


def context_tokens_of(worker: WorkerSettings, settings: Settings) -> int | None:
    """Return the context length from the settings or the vLLM arguments, or None if vLLM decides."""
    if worker.context_tokens:
        return worker.context_tokens
    if not isinstance(worker, VllmSettings):
        return None
    tokens = settings.owner_of(worker).engine.get("max_model_len")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def context_limit_of(worker: WorkerSettings, settings: Settings) -> int | None:
    """Return the worker's context length in tokens: the one that is set, or what is known of a provider's model.
    None if unknown.
    """
    tokens = context_tokens_of(worker, settings)
    if tokens is None and isinstance(worker, API_SETTINGS):
        return context_tokens_by_name(worker.like or worker.model)
    return tokens


def price_of(worker: WorkerSettings) -> Price | None:
    """Return the price that is set, or zero for kinds that are not billed by tokens, or None."""
    if worker.price is not None:
        return worker.price.to_price()
    return FREE if isinstance(worker, VllmSettings | ScriptedSettings) else None


def baseline_price_of(settings: Settings) -> Price | None:
    """Return the price of the model with which costs are compared, or None if there is none or it is unknown.

    A worker's price is the highest price of its deployments.
    """
    baseline = settings.baseline
    if baseline is None:
        return None
    if baseline.price is not None:
        return baseline.price.to_price()
    places = [
        price_of(place)
        for worker in settings.workers
        if worker.name == baseline.model
        for place in places_of(worker).values()
    ]
    known_prices = [price for price in places if price is not None]
    return dearest_of(known_prices) if known_prices and len(known_prices) == len(places) else None


@dataclass(frozen=True, slots=True)
class Place:
    """Place that a call is sent to.

    Args:
        provider: name of the provider.
        region: name of the region, or None if unknown.
        is_local: whether nothing leaves your own machines.
    """

    provider: str
    region: str | None
    is_local: bool


def places_reached(worker: WorkerSettings) -> list[Place]:
    """Return every place of a call to `worker`, one per deployment. Fallbacks are separate workers."""
    return [
        Place(each.provider or each.kind, each.region, _is_local(each)) for each in places_of(worker).values()
    ]


def _is_local(worker: WorkerSettings) -> bool:
    if worker.local is not None:
        return worker.local
    if isinstance(worker, API_SETTINGS):
        return worker.base_url is not None and _is_this_machine(worker.base_url)
    return isinstance(worker, VllmSettings | ScriptedSettings)


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
