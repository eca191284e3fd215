"""Operations that each worker serves, and `WireOptions` that it accepts, by its kind. No server is contacted."""

from conductor.model.operation import Operation
from serving.settings.fallbacks import fallbacks_of
from serving.settings.known_models import accepts_of
from serving.settings.settings import Settings
from serving.settings.workers import OpenAISettings, ScriptedSettings, VllmSettings, WorkerSettings

PENALTIES = frozenset({"frequency_penalty", "presence_penalty", "logit_bias"})
SCRIPTED = frozenset({*PENALTIES, "top_logprobs", "verbosity", "dimensions", "token_prompt"})


def serves_of(worker: WorkerSettings, settings: Settings) -> frozenset[Operation]:
    """Return the operations that the worker serves. Text completion is included only if its fallbacks serve
    it too.
    """
    line = _line(worker, settings)
    may_continue = all("text_completion" in _serves(each) for each in line)
    return _serves(worker) if may_continue else _serves(worker) - {"text_completion"}


def takes_of(worker: WorkerSettings, settings: Settings) -> frozenset[str]:
    """Return the options that both the worker and its fallbacks accept."""
    line = _line(worker, settings)
    alone = {"token_prompt"}  # a call with it uses no fallbacks
    return frozenset(
        name for name in _takes(worker) if name in alone or all(name in _takes(each) for each in line)
    )


def _line(worker: WorkerSettings, settings: Settings) -> list[WorkerSettings]:
    return [worker, *(settings.worker(name) for name in fallbacks_of(worker, settings))]


def _serves(worker: WorkerSettings) -> frozenset[Operation]:
    match worker:
        case VllmSettings() | OpenAISettings() | ScriptedSettings():
            return frozenset[Operation](worker.serves)
        case _:
            return frozenset[Operation]({"chat"})


def _takes(worker: WorkerSettings) -> frozenset[str]:
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
