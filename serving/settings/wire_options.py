"""Which calls beside a chat each worker serves, and which `WireOptions` it takes. Knows the kinds, and asks
nobody.
"""

from conductor.model.operation import Operation
from serving.settings.fallbacks import fallbacks_of
from serving.settings.known_models import accepts_of
from serving.settings.settings import Settings
from serving.settings.workers import OpenAISettings, ScriptedSettings, VllmSettings, WorkerSettings

PENALTIES = frozenset({"frequency_penalty", "presence_penalty", "logit_bias"})
SCRIPTED = frozenset({*PENALTIES, "top_logprobs", "verbosity", "dimensions", "token_prompt"})


def serves_of(worker: WorkerSettings, settings: Settings) -> frozenset[Operation]:
    """What the worker can be asked for: for a completion of text, those that may answer in its place too."""
    line = _line(worker, settings)
    may_continue = all("text_completion" in _serves(each) for each in line)
    return _serves(worker) if may_continue else _serves(worker) - {"text_completion"}


def takes_of(worker: WorkerSettings, settings: Settings) -> frozenset[str]:
    """The options that the worker, and whoever may answer in its place, take."""
    line = _line(worker, settings)
    alone = {"token_prompt"}  # with it, nobody is asked in the worker's place
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
