"""Which workers may be offered the client's tools. Knows the kinds and some models' names, and asks nobody."""

import re

from serving.settings.settings import Settings
from serving.settings.workers import (
    API_SETTINGS,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
)

CALL_TOOLS = (
    r"(^|/)gpt-([4-9]|oss)",
    r"(^|/)o[1-9](-|$)",
    r"claude-",
    r"gemini-",
    r"(^|/)deepseek-",
    r"(^|/)grok-[2-9]",
    r"(^|/)mistral-(large|medium|small)",
)
"""Models that are known to call tools, by their names."""


def calls_tools(worker: WorkerSettings, settings: Settings) -> bool | None:
    """Whether the worker may be offered tools; None: nobody knows, and it may."""
    if isinstance(worker, VllmSettings):
        return worker.calls_tools is not False and _reads_calls(worker, settings)
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


def _reads_calls(worker: VllmSettings, settings: Settings) -> bool:
    """Whether its engine has a parser for calls; without one they would come back as words."""
    owner = settings.worker(worker.deployment) if worker.deployment else worker
    return isinstance(owner, VllmSettings) and bool(owner.engine.get("tool_call_parser"))
