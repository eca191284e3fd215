"""Public Python API of Podium.

Each name imports its module on first use, so that `import podium` itself loads nothing.

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
    "Failure": "conductor.model.failure",
    "Image": "conductor.model.messages",
    "Message": "conductor.model.messages",
    "Text": "conductor.model.messages",
    "PoolMember": "conductor.model.worker",
    "Price": "conductor.model.usage",
    "Usage": "conductor.model.usage",
    "Call": "conductor.model.call",
    "CallResult": "conductor.model.reply",
    "Delta": "conductor.model.reply",
    "Reply": "conductor.model.reply",
    "Sampling": "conductor.model.call",
    "Worker": "conductor.model.worker",
    "open_reply": "conductor.model.deltas",
    "Plan": "conductor.plan.plan",
    "Step": "conductor.plan.plan",
    "dump": "conductor.run.codec",
    "load": "conductor.run.codec",
    "Budget": "conductor.run.ledger",
    "open_run": "conductor.run.lifecycle",
    "resume_run": "conductor.run.lifecycle",
    "ConductorModel": "conductor.run.team",
    "Record": "conductor.run.record",
    "RunRecords": "conductor.run.record",
    "Task": "conductor.run.task",
    "Team": "conductor.run.team",
    "Settings": "serving.settings.settings",
    "SettingsError": "serving.settings.faults",
    "load_settings": "serving.settings.overrides:settings_to_serve",
}
"""Module of each public name, as `module`, or as `module:name` if the name in the module is different."""

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
