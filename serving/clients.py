"""Clients that send calls to workers, one for each deployment in the `workers` setting.

Retries, limits and fallbacks are added elsewhere (`serving/dispatch/`).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import isawaitable
from typing import TYPE_CHECKING, assert_never

from conductor.model.worker import Worker
from serving.egress.reach import ANYWHERE, SETTINGS
from serving.health import Identity
from serving.lora.adapters import name_of
from serving.settings.engine_arguments import engine_faults
from serving.settings.keys import key_that_is_missing, read_key
from serving.settings.settings import Settings, SettingsError
from serving.settings.webhooks import SecretError, signers
from serving.settings.worker_profile import accepts_of, calls_tools, price_of
from serving.settings.workers import (
    API_SETTINGS,
    AnthropicSettings,
    GeminiSettings,
    OpenAISettings,
    PythonSettings,
    ScriptedReplySettings,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
    places_of,
)
from serving.workers.stall_timer import Patience
from serving.workers.vllm import EngineClient, VllmWorker

if TYPE_CHECKING:
    from serving.workers.provider_account import ProviderAccount
    from serving.workers.scripted import ScriptedReply

Engines = Mapping[str, EngineClient]
"""vLLM engines by the name of the worker that owns them."""


def build_client(
    worker: WorkerSettings, settings: Settings, environment: Mapping[str, str], engines: Engines
) -> Worker:
    """Build the client of a worker, without retries, limits or fallbacks. Only the SDKs of used providers are
    imported. Raise SettingsError if it cannot be built.
    """
    price = price_of(worker)
    match worker:
        case VllmSettings():
            return VllmWorker(
                worker.name,
                model_name(worker, settings),
                engines[settings.owner_of(worker).name],
                price,
                worker.adapter,
                calls_tools=bool(calls_tools(worker, settings)),
                patience=Patience(worker.stall_timeout_s, worker.first_token_timeout_s),
                whole_sentences=worker.whole_sentences,
            )
        case OpenAISettings():
            from serving.workers.openai import OpenAIWorker
            from serving.workers.openai_responses import OpenAIResponsesWorker

            kind = OpenAIResponsesWorker if worker.api == "responses" else OpenAIWorker
            return kind(_account(worker, settings, environment))
        case AnthropicSettings():
            from serving.workers.anthropic import AnthropicWorker

            return AnthropicWorker(_account(worker, settings, environment))
        case GeminiSettings():
            from serving.workers.gemini import GeminiWorker

            return GeminiWorker(_account(worker, settings, environment))
        case ScriptedSettings():
            from serving.workers.scripted import ScriptedWorker

            replies = [each if isinstance(each, str) else _scripted_reply(each) for each in worker.replies]
            return ScriptedWorker(worker.name, replies, worker.delay_s, worker.tokens_per_s, price)
        case PythonSettings():
            from serving.workers.plugin import load_plugin

            return load_plugin(worker.name, price, worker.factory, worker.options)
        case _:
            assert_never(worker)


async def find_faults(settings: Settings, environment: Mapping[str, str]) -> list[SettingsError]:
    """Find errors of building workers and webhooks without calls: plugins, libraries, credentials, secrets,
    and names of vLLM's arguments. Missing keys are in `absent_workers`; the machine's size is not checked.
    """
    faults: list[SettingsError] = []
    try:
        signers(settings.webhooks, environment)
    except SecretError as exc:
        faults.append(SettingsError(str(exc), at=("webhooks", "secret_env")))
    for worker in settings.workers:
        if isinstance(worker, VllmSettings):
            faults += engine_faults(worker)
        for own in places_of(worker).values():
            try:
                if isinstance(own, VllmSettings) or (
                    isinstance(own, API_SETTINGS) and key_that_is_missing(own, environment)
                ):
                    continue
            except SettingsError:
                continue
            try:
                client = build_client(own, settings, environment, {})
            except SettingsError as exc:
                faults.append(exc)
                continue
            close: Callable[[], object] | None = getattr(client, "aclose", None)
            if close is not None and isawaitable(closing := close()):
                await closing
    return faults


def _scripted_reply(reply: ScriptedReplySettings) -> "ScriptedReply":
    from serving.workers.scripted import ScriptedCall, ScriptedReply

    def text(arguments: object) -> str:
        return arguments if isinstance(arguments, str) else json.dumps(arguments)

    calls = tuple(ScriptedCall(each.name, text(each.arguments)) for each in reply.calls)
    return replace(ScriptedReply(**reply.model_dump(exclude={"calls"})), calls=calls)


def _account(
    worker: OpenAISettings | AnthropicSettings | GeminiSettings,
    settings: Settings,
    environment: Mapping[str, str],
) -> "ProviderAccount":
    """Return the provider account, with a placeholder for the key if none is set."""
    from serving.workers.clouds import check_installed
    from serving.workers.provider_account import NO_KEY, ProviderAccount

    check_installed(worker)
    return ProviderAccount(
        name=worker.name,
        model=worker.model,
        api_key=read_key(worker, environment) or NO_KEY,
        base_url=worker.base_url,
        price=price_of(worker),
        stall_timeout_s=worker.stall_timeout_s,
        first_token_timeout_s=worker.first_token_timeout_s,
        connect_timeout_s=worker.connect_timeout_s,
        extra_body=worker.extra_body,
        family=worker.like or worker.model,
        accepts=accepts_of(worker),
        reach=ANYWHERE if worker.allow_link_local else SETTINGS,
        fetches_pictures=worker.fetches_pictures,
        access=worker,
        sets_breakpoints=settings.conversation.breakpoints,
    )


def model_name(worker: WorkerSettings, settings: Settings) -> str:
    match worker:
        case ScriptedSettings() | PythonSettings():
            return worker.name
        case VllmSettings():
            model = settings.owner_of(worker).model
            return f"{model}+{name_of(worker.adapter)}" if worker.adapter else model
        case _:
            return worker.model


def identity_of(worker: WorkerSettings, settings: Settings, place: str = "") -> Identity:
    """Return the key of the health record of a worker or its deployment `place`. While it stays equal, the
    record is kept.
    """
    match worker:
        case ScriptedSettings():
            address = ""
        case PythonSettings():
            address = worker.factory
        case VllmSettings():
            address = settings.owner_of(worker).name
        case _:
            address = " ".join(filter(None, (worker.base_url, worker.service, worker.region, worker.project)))
    return Identity(place or worker.name, worker.kind, model_name(worker, settings), address)


def provenance_of(worker: WorkerSettings, client: Worker, settings: Settings) -> str:
    """Return where answers come from, such as "scripted", or "" for models and plugins without `provenance`."""
    match worker:
        case ScriptedSettings():
            return "scripted"
        case PythonSettings():
            return str(getattr(client, "provenance", ""))
        case VllmSettings():
            return "scripted" if settings.owner_of(worker).stand_in else ""
        case _:
            return ""
