"""The page of all settings, from their classes: `python -m serving.settings.page > docs/settings.md`. A
field's docstring is its meaning.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from serving.settings import prices, scale, sections, settings, webhooks, workers
from serving.settings.accepts import Accepts

HEAD = """\
# All settings

Written by `make docs` from the classes in `serving/settings/`; do not edit it by hand. Unknown keys are refused with
their place, and a file is checked whole before anything starts. Units are in names: `_s` seconds, `_usd` dollars, `_tokens` tokens. Start a
file with `make serve SETTINGS=file.yaml`. Examples: [local models](../cluster/local.yaml), [API models only](../cluster/api.yaml),
[GPUs](../cluster/gpu.yaml), [a fake](../cluster/scripted.yaml).
"""
EVERY_KIND, API_KINDS = (kind.__mro__[1] for kind in (workers.VllmSettings, workers.OpenAISettings))
SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The file", settings.Settings),
    ("conductor", sections.ConductorSettings),
    ("models.NAME", sections.ModelSettings),
    ("workflows.NAME[]", sections.StepSettings),
    ("workers[]: every kind", EVERY_KIND),
    ("workers[]: kind openai, anthropic and gemini", API_KINDS),
    ("workers[]: kind openai", workers.OpenAISettings),
    ("workers[].deployments[]", workers.DeploymentSettings),
    ("workers[]: kind vllm", workers.VllmSettings),
    ("workers[]: kind python", workers.PythonSettings),
    ("workers[]: kind scripted", workers.ScriptedSettings),
    ("workers[].price", prices.PriceSettings),
    ("workers[].price.long_prompts[]", prices.LongPromptSettings),
    ("workers[].retry", workers.RetrySettings),
    ("workers[].accepts", Accepts),
    ("workers[].scale", scale.Scale),
    ("workers[].stand_in", workers.StandInSettings),
    ("workers[].replies[]", workers.ScriptedReplySettings),
    ("workers[].replies[].calls[]", workers.ScriptedCallSettings),
    ("prompts", sections.PromptSettings),
    ("limits", sections.LimitSettings),
    ("http", sections.HttpSettings),
    ("router", sections.RouterSettings),
    ("store", sections.StoreSettings),
    ("cache", sections.CacheSettings),
    ("batches", sections.BatchSettings),
    ("webhooks", webhooks.WebhookSettings),
    ("telemetry", sections.TelemetrySettings),
)
"""In the order of the page. Workers' common fields are shown once, those of `Scaling` where they are used."""
WORDS: dict[Any, str] = {
    bool: "`true` or `false`",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "a file's path",
    Any: "anything",
    NoneType: "`null`",
}
BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


def page() -> str:
    """All of it, as Markdown."""
    return "\n".join([HEAD, *(section(title, model) for title, model in SECTIONS)])


def section(title: str, model: type[BaseModel]) -> str:
    """A class: what it is for, and a row for each of its fields."""
    about = " ".join((model.__doc__ or "").split())
    rows = [row(name, model.model_fields[name], meaning) for name, meaning in own_fields(model).items()]
    table = ["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {title}", "", about, "", *table, ""])


def own_fields(model: type[BaseModel]) -> dict[str, str]:
    """The meanings of the fields that no section of all workers shows; a worker's `kind` is in the titles."""
    common = {
        name: meaning
        for base in (EVERY_KIND, API_KINDS)
        if issubclass(model, base) and model is not base
        for name, meaning in meanings(base).items()
    }
    return {
        name: meaning
        for name, meaning in meanings(model).items()
        if name != "kind" and common.get(name) != meaning
    }


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Each field's docstring, on one line; the nearest one of those that the class and its bases have. Empty
    where there is none.

    pydantic could keep them (`use_attribute_docstrings`), at a cost to every process that imports the
    settings.
    """
    found: dict[str, str] = {}
    for base in reversed(
        [each for each in model.__mro__ if issubclass(each, BaseModel) and each is not BaseModel]
    ):
        body = cast(ast.ClassDef, ast.parse(inspect.getsource(base)).body[0]).body
        for field, doc in pairwise([*body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                own = isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
                text = (
                    inspect.cleandoc(str(cast(ast.Constant, cast(ast.Expr, doc).value).value)) if own else ""
                )
                found[field.target.id] = " ".join(text.split()) or found.get(field.target.id, "")
    return {name: found[name] for name in model.model_fields}


def row(name: str, field: FieldInfo, meaning: str) -> str:
    """A field."""
    cells = (f"`{name}`", kind(field.annotation) + bounds(field), default(field), meaning)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def kind(annotation: Any) -> str:
    """What may be written for a type."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if origin is Annotated:
        return kind(inner[0])
    if origin is Literal:
        return one_of(f"`{each}`" for each in inner)
    if origin in (Union, UnionType):
        return one_of(dict.fromkeys(map(kind, inner)))
    if origin is tuple:
        return f"list of {kind(inner[0])}"
    if origin is dict:
        return f"{kind(inner[1])}, by name" if inner[1] is not Any else "keys and values"
    if issubclass(annotation, BaseModel):
        return link(annotation)
    if issubclass(annotation, Enum):
        return one_of(f"`{each.value}`" for each in annotation)
    return "number"  # Decimal, read exactly


def link(model: type[BaseModel]) -> str:
    """The section where the fields of `model` are, or of all workers."""
    if issubclass(model, EVERY_KIND):
        return "[worker](#workers-every-kind)"
    title = next(title for title, shown in SECTIONS if shown is model)
    anchor = "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return f"[{title.removeprefix('workers[].').replace('[]', '')}](#{anchor})"


def one_of(words: Iterable[str]) -> str:
    """Words joined by commas and an `or`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def bounds(field: FieldInfo) -> str:
    """The limits of a number, and whether a list may be empty."""
    limits = [
        f"{words} {getattr(each, name):g}"
        for each in field.metadata
        for limit, (name, words) in BOUNDS.items()
        if isinstance(each, limit)
    ]
    limits += ["not empty" for each in field.metadata if isinstance(each, MinLen)]
    return f", {', '.join(limits)}" if limits else ""


def default(field: FieldInfo) -> str:
    """What holds where a field is not written."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its defaults"
    if value in ((), {}, ""):
        return "none"
    if isinstance(value, str):
        return f"`{value}`"
    return f"`{value:g}`" if isinstance(value, float | Decimal) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    sys.stdout.write(page())
