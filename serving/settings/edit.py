"""Sets fields of workers in the text of a settings file; every other character stays, comments and layout
too.

YAML's own marks say where a value begins and ends, so only that is replaced. A library that reads and writes
the whole file would wrap its lines anew (docs/decisions/0025).
"""

import json
from collections.abc import Mapping
from typing import Any, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from serving.settings.settings import SettingsError

Fields = Mapping[str, Mapping[str, str | float]]
"""By worker: field and value."""


def edit_workers(text: str, fields: Fields) -> str:
    """`text` with these fields of these workers set; a field that is not there is put after the name.

    Raises:
        SettingsError: it is no settings file, has no such worker, or more than these fields would change.
    """
    edits: list[tuple[int, int, str]] = []
    workers = _workers(text)
    for name, values in fields.items():
        if name not in workers:
            raise SettingsError(f"No worker is called {name!r}; there are: {', '.join(workers)}.")
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
        raise SettingsError(f"The settings are not YAML: {exc}") from exc
    listed = _value(root, "workers") if isinstance(root, MappingNode) else None
    if not isinstance(listed, SequenceNode):
        raise SettingsError("The settings have no list of `workers`.")
    found: dict[str, MappingNode] = {}
    for node in cast(list[Node], listed.value):
        name = _value(node, "name") if isinstance(node, MappingNode) else None
        if isinstance(node, MappingNode) and isinstance(name, ScalarNode):
            found[str(name.value)] = node
    return found


def _value(node: MappingNode, key: str) -> Node | None:
    pairs = cast(list[tuple[Node, Node]], node.value)
    return next((value for name, value in pairs if name.value == key), None)


def _edit(text: str, worker: MappingNode, field: str, new: str) -> tuple[int, int, str]:
    """What to replace: from, to, by what."""
    old = _value(worker, field)
    if old is None:
        return _insertion(text, worker, f"{field}: {new}")
    begin, end = old.start_mark.index, old.end_mark.index
    if not worker.start_mark.index <= begin < worker.end_mark.index:
        raise SettingsError(
            f"`{field}` is an alias (*) of a value elsewhere in the file; write the value out first."
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
    """That the files differ in these fields alone: anchors and merges can carry a value elsewhere."""
    before: Any = yaml.safe_load(old)
    try:
        after: Any = yaml.safe_load(new)
    except yaml.YAMLError as exc:
        raise SettingsError(f"The fields cannot be set without breaking the file: {exc}") from exc
    for worker in before["workers"]:
        worker.update(fields.get(worker["name"], {}))
    if before != after:
        changed = [
            one["name"]
            for one, other in zip(before["workers"], after["workers"], strict=False)
            if one != other
        ]
        raise SettingsError(
            "More than these fields would change, because values are shared by an anchor (&) or a merge (<<)"
            + (f": see the worker {changed[0]!r}" if changed else "")
            + ". Give each of these workers a value of its own first."
        )
