"""Edits of workers' fields in the text of a settings file, which keep all other characters, comments and
layout included.

YAML's marks say where a value begins and ends, so only the value is replaced. A library that reads and writes
the whole file would wrap its lines differently (docs/decisions/0025).
"""

import json
from collections.abc import Mapping
from typing import Any, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from serving.settings.settings import SettingsError

Fields = Mapping[str, Mapping[str, str | float]]
"""Fields and their values, by worker."""


def edit_workers(text: str, fields: Fields) -> str:
    """Return `text` with these fields of these workers set. A field that is missing is inserted after the
    name.

    Raises:
        SettingsError: `text` is not a settings file, has no such worker, or other fields would change too.
    """
    edits: list[tuple[int, int, str]] = []
    workers = _workers(text)
    for name, values in fields.items():
        if name not in workers:
            raise SettingsError(f"No worker is named {name!r}. Known workers: {', '.join(workers)}.")
        for field, value in values.items():
            edits.append(_edit(text, workers[name], field, json.dumps(value, ensure_ascii=False)))
    edited = text
    for begin, end, new in sorted(edits, reverse=True, key=lambda edit: edit[:2]):
        edited = edited[:begin] + new + edited[end:]
    _check(text, edited, fields)
    return edited


def _workers(text: str) -> dict[str, MappingNode]:
    try:
        root: Node | None = cast(Any, yaml.SafeLoader(text)).get_single_node()
    except yaml.YAMLError as exc:
        raise SettingsError(f"The settings are not valid YAML: {exc}") from exc
    entries = _value(root, "workers") if isinstance(root, MappingNode) else None
    if not isinstance(entries, SequenceNode):
        raise SettingsError("The settings must have a list named `workers`.")
    workers: dict[str, MappingNode] = {}
    for node in cast(list[Node], entries.value):
        name = _value(node, "name") if isinstance(node, MappingNode) else None
        if isinstance(node, MappingNode) and isinstance(name, ScalarNode):
            workers[str(name.value)] = node
    return workers


def _value(node: MappingNode, key: str) -> Node | None:
    pairs = cast(list[tuple[Node, Node]], node.value)
    return next((value for name, value in pairs if name.value == key), None)


def _edit(text: str, worker: MappingNode, field: str, new: str) -> tuple[int, int, str]:
    """Return the start and the end of the text to replace, and its replacement."""
    old = _value(worker, field)
    if old is None:
        return _insertion(text, worker, f"{field}: {new}")
    begin, end = old.start_mark.index, old.end_mark.index
    if not worker.start_mark.index <= begin < worker.end_mark.index:
        raise SettingsError(
            f"`{field}` is a YAML alias (*) of a value elsewhere in the file. Replace the alias with that value first."
        )
    span = text[begin:end]
    _, _, comment = span.partition("\n")[0].partition("#")
    if isinstance(old, ScalarNode) and old.style in ("|", ">") and comment:
        new += f" #{comment}"
    return begin, begin + len(span.rstrip()), new if span else f" {new}"


def _insertion(text: str, worker: MappingNode, line: str) -> tuple[int, int, str]:
    name = _value(worker, "name")
    assert name is not None, "workers are found by their names"
    end = name.end_mark.index
    if worker.flow_style:
        return end, end, f", {line}"
    newline = "\r\n" if "\r\n" in text else "\n"
    line_end = text.find(newline, end)
    at = len(text) if line_end < 0 else line_end
    return at, at, f"{newline}{' ' * worker.value[0][0].start_mark.column}{line}"


def _check(old: str, new: str, fields: Fields) -> None:
    """Check that only these fields differ. Anchors and merges can change a value elsewhere too."""
    before: Any = yaml.safe_load(old)
    try:
        after: Any = yaml.safe_load(new)
    except yaml.YAMLError as exc:
        raise SettingsError(f"Setting these fields would make the file invalid YAML: {exc}") from exc
    for worker in before["workers"]:
        worker.update(fields.get(worker["name"], {}))
    if before != after:
        changed = [
            one["name"]
            for one, other in zip(before["workers"], after["workers"], strict=False)
            if one != other
        ]
        where = f" of worker {changed[0]!r}" if changed else ""
        raise SettingsError(
            f"This edit would also change other fields{where}, because a YAML anchor (&) or merge (<<) shares values. "
            "Give each worker its own values first."
        )
