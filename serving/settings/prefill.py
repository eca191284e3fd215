"""Workers that can continue an assistant message at the end of a conversation, by their kinds and models. No
server is contacted.
"""

from conductor.model.call import Call
from serving.settings.known_models import accepts_of
from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, ScriptedSettings, VllmSettings, WorkerSettings


def prefills(worker: WorkerSettings, settings: Settings, call: Call) -> bool:
    """Return whether the worker continues the prefix of `call`. A model that thinks first does not: its
    thoughts would come after text of its answer.
    """
    match worker:
        case ScriptedSettings():
            return True
        case VllmSettings():
            owner = settings.worker(worker.deployment) if worker.deployment else worker
            return isinstance(owner, VllmSettings) and not owner.engine.get("reasoning_parser")
        case _ if isinstance(worker, API_SETTINGS):
            accepts = accepts_of(worker)
            return accepts.prefill and not accepts.thinks(call.sampling.effort)
        case _:
            return False
