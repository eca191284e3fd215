"""Podium as a library: the names a program imports. Each loads its module at first use, so that `import
podium` loads nothing.

from podium import Plan, Step, Task, load_settings
"""

from __future__ import annotations

from importlib import import_module

EXPORTS = {
    "BadTask": "conductor.errors",
    "BudgetExceeded": "conductor.errors",
    "DeadlineExceeded": "conductor.errors",
    "NoPlan": "conductor.errors",
    "Overloaded": "conductor.errors",
    "PodiumError": "conductor.errors",
    "WorkerError": "conductor.errors",
    "Price": "conductor.money",
    "Usage": "conductor.money",
    "Plan": "conductor.plan",
    "Step": "conductor.plan",
    "Record": "conductor.record",
    "Task": "conductor.task",
    "Call": "conductor.worker",
    "Image": "conductor.worker",
    "Member": "conductor.worker",
    "Message": "conductor.worker",
    "Reply": "conductor.worker",
    "Text": "conductor.worker",
    "Worker": "conductor.worker",
    "Settings": "serving.settings",
    "SettingsError": "serving.settings",
    "load_settings": "serving.settings:load",
}
"""Public name -> `module`, or `module:name` where it is called something else there."""

__all__ = sorted(EXPORTS)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = EXPORTS[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
