"""Workers that may be offered the client's tools, by their kinds and some models' names. No server is contacted."""

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
"""Models that are known to call tools, by name."""


def calls_tools(worker: WorkerSettings, settings: Settings) -> bool | None:
    """Return whether the worker may be offered tools, or None if unknown; then it may."""
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
    """Return whether the worker's engine has a parser for tool calls. Without one, they would be returned as
    text.
    """
    owner = settings.worker(worker.deployment) if worker.deployment else worker
    return isinstance(owner, VllmSettings) and bool(owner.engine.get("tool_call_parser"))
