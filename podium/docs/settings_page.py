"""Generate the tables of docs/settings.md from the settings classes.

The docstring of a field is its description.
"""

import ast
import inspect
import json
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

from serving.settings import scale, sections, settings, webhooks, worker_base, workers
from serving.settings.known_models import Accepts

EVERY_KIND, API_KINDS = worker_base.WorkerBase, workers.OpenAISettings.__mro__[1]
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
    ("workers[].price", worker_base.PriceSettings),
    ("workers[].price.long_prompts[]", worker_base.LongPromptSettings),
    ("workers[].retry", worker_base.RetrySettings),
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
    ("conversation", sections.ConversationSettings),
    ("baseline", sections.BaselineSettings),
    ("batches", sections.BatchSettings),
    ("webhooks", webhooks.WebhookSettings),
    ("telemetry", sections.TelemetrySettings),
)
"""Sections of the page in order. Fields that all workers share have their own, those of `Scaling` repeat."""
WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    Path: "a file's path",
    Any: "anything",
    NoneType: "`null`",
}
PLURALS = {"whole number": "whole numbers", "text": "texts"}
OR_NULL = " or `null`"
BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


def generate() -> str:
    return "\n".join(section(title, model) for title, model in SECTIONS)


def section(title: str, model: type[BaseModel]) -> str:
    """Generate the section of a class: its description, and a table with a row for each field."""
    about = " ".join((model.__doc__ or "").split())
    rows = [row(name, model.model_fields[name], meaning) for name, meaning in own_fields(model).items()]
    table = ["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {title}", "", about, "", *table, ""])


def own_fields(model: type[BaseModel]) -> dict[str, str]:
    """Return the descriptions of fields outside the shared sections, without `kind`, the title."""
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
    """Return the docstring of each field on one line, or "" if the field has none.

    A class takes precedence over its base classes. Pydantic's `use_attribute_docstrings` is not used, because
    it would slow down every process that imports the settings.
    """
    docs: dict[str, str] = {}
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
                docs[field.target.id] = " ".join(text.split()) or docs.get(field.target.id, "")
    return {name: docs[name] for name in model.model_fields}


def row(name: str, field: FieldInfo, meaning: str) -> str:
    cells = (f"`{name}`", values(field), default(field), meaning)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def values(field: FieldInfo) -> str:
    """Describe in words which values a field allows."""
    words, limits = kind(field.annotation), bounds(field)
    if limits and words.endswith(OR_NULL):
        return f"{words.removesuffix(OR_NULL)}, {limits},{OR_NULL}"
    return f"{words}, {limits}" if limits else words


def kind(annotation: Any) -> str:
    """Describe in words which values a type allows."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if annotation in WORDS:
        return WORDS[annotation]
    if origin is Annotated:
        return kind(inner[0])
    if annotation is bool or origin in (Literal, Union, UnionType):
        return one_of(choices(annotation))
    if origin is tuple:
        return f"list of {plural(inner[0])}"
    if origin is dict:
        return f"{plural(inner[1])}, by name" if inner[1] is not Any else "keys and values"
    if issubclass(annotation, BaseModel):
        return link(annotation)
    if issubclass(annotation, Enum):
        return one_of(f"`{each.value}`" for each in annotation)
    return "number"  # Decimal, read exactly


def plural(annotation: Any) -> str:
    return one_of(PLURALS.get(choice, choice) for choice in choices(annotation))


def choices(annotation: Any) -> list[str]:
    """Describe each alternative of a type, such as the values of a literal. Most types have only one."""
    if annotation is bool:
        return ["`true`", "`false`"]
    if get_origin(annotation) is Literal:
        return [f"`{each}`" for each in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType):
        return list(dict.fromkeys(choice for each in get_args(annotation) for choice in choices(each)))
    return [kind(annotation)]


def link(model: type[BaseModel]) -> str:
    """Return a link to the section with the fields of `model`, or to the section about all workers."""
    if issubclass(model, EVERY_KIND):
        return "[worker](#workers-every-kind)"
    title = next(title for title, section_model in SECTIONS if section_model is model)
    anchor = "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return f"[{title.removeprefix('workers[].').replace('[]', '')}](#{anchor})"


def one_of(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def bounds(field: FieldInfo) -> str:
    """Describe the limits of a number, or the requirement that a list is not empty."""
    limits = [
        f"{words} {getattr(each, name):,.12g}"
        for each in field.metadata
        for limit, (name, words) in BOUNDS.items()
        if isinstance(each, limit)
    ]
    limits += ["not empty" for each in field.metadata if isinstance(each, MinLen)]
    return " and ".join(limits)


def default(field: FieldInfo) -> str:
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
