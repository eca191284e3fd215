"""Check that the Python names in a Serve config can be imported, and that its `user_config` is accepted.

Source files are parsed but not run.
"""

import ast
import importlib.util
from pathlib import Path

from podium.doctor.cluster.deployments import ROUTER
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.reading import items, mapping
from podium.doctor.finding import Finding, wrong
from serving.settings.patch import apply_patch
from serving.settings.settings import SettingsError

BUILDER = "serving.app:build_app"


def builder(files: ClusterFiles) -> list[Finding]:
    """Check that the application's builder can be imported."""
    name, field = files.serve.import_path, "applications[0].import_path"
    if reason := cannot_be_imported(name):
        return [
            wrong(
                f"is {name}, but {reason}.",
                f"Set import_path: {BUILDER}.",
                file=files.serve.file,
                field=field,
            )
        ]
    return []


def user_configs(files: ClusterFiles) -> list[Finding]:
    """Check that only the router has a `user_config`, with settings that can change at run time."""
    findings: list[Finding] = []
    for name, overrides in files.serve.deployments.items():
        config = overrides.get("user_config")
        if not config:
            continue
        field = f"{name}.user_config"
        if name != ROUTER:
            message = (
                "is set on an engine, but engines do not accept a user_config. The replicas will not start."
            )
            findings.append(wrong(message, f"Move it to `{ROUTER}`.", file=files.serve.file, field=field))
        elif reason := _rejection(files, config):
            findings.append(wrong(*reason, file=files.serve.file, field=field))
    return findings


def _rejection(files: ClusterFiles, config: dict[str, object]) -> tuple[str, str] | None:
    names = [worker.name for worker in files.settings.workers]
    for each in items(config.get("workers")):
        worker = mapping(each)
        if isinstance(each, dict) and worker.get("name") not in names and "kind" not in worker:
            message = (
                f"changes the worker {worker.get('name')!r}, which {files.settings_file} does not define."
            )
            return message, f"Use one of {', '.join(names)}. To add a worker, set its `kind` and `model`."
    try:
        apply_patch(files.settings, config)
    except SettingsError as exc:
        return (
            f"is rejected by the router: {exc.message}",
            "Move settings that cannot change at run time to the settings file.",
        )
    return None


def cannot_be_imported(target: str) -> str | None:
    """Return why `package.module:name` cannot be imported, or None if it can."""
    module, _, name = target.replace(":", ".").rpartition(".")
    try:
        spec = importlib.util.find_spec(module) if module else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        return f"there is no module {module or target!r}"
    if spec.origin.endswith(".py") and name not in _names(Path(spec.origin)):
        return f"the module {module!r} has no {name!r}"
    return None


def _names(source: Path) -> set[str]:
    """Return the names that the module in the file `source` defines at its top level."""
    names: set[str] = set()
    for each in ast.parse(source.read_text(encoding="utf-8")).body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                names |= {alias.asname or alias.name for alias in imported}
            case ast.Assign() | ast.AnnAssign():
                names |= {node.id for node in ast.walk(each) if isinstance(node, ast.Name)}
            case _:
                pass
    return names
