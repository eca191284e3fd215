"""API reference page, generated from the OpenAPI document: routes, parameters, objects and fields."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any

Json = dict[str, Any]
HEAD = """# API reference

Generated from `GET /v1/openapi.json`, which every server provides. {about}
"""


def write_page(document: Json) -> str:
    lines = [HEAD.format(about=document["info"]["description"])]
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            lines += _operation(f"{method.upper()} {path}", operation)
    lines.append("# Objects\n".replace("# ", "## ", 1))
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += _object(name, schema)
    return "\n".join(lines)


def _operation(title: str, operation: Json) -> Generator[str]:
    yield f"## `{title}`\n"
    yield f"{_text(operation.get('description', ''))}\n"
    if parameters := operation.get("parameters"):
        yield from _table((each["name"], each["schema"], each.get("description", "")) for each in parameters)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body (`{kind}`): {_type(content.get('schema', {}))}\n"
    for status, answer in operation["responses"].items():
        types = [_type(each["schema"]) for each in answer.get("content", {}).values() if each.get("schema")]
        if status.startswith("2") and types:
            yield f"Response ({status}): {', '.join(types)}\n"


def _object(name: str, schema: Json) -> Generator[str]:
    yield f"### {name}\n"
    yield f"{_text(schema.get('description', ''))}\n"
    if "enum" in schema:
        yield f"{_type(schema)}\n"
    fields: Mapping[str, Json] = schema.get("properties", {})
    if fields:
        yield from _table((field, each, each.get("description", "")) for field, each in fields.items())


def _table(rows: Any) -> Generator[str]:
    yield "| field | type | meaning |\n| --- | --- | --- |"
    for name, schema, about in rows:
        yield f"| `{name}` | {_type(schema)} | {_text(about)} |"
    yield ""


def _type(schema: Json) -> str:
    """Describe the type of a schema in a few words, with links to objects on the same page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[several]))
    if "enum" in schema or "const" in schema:
        values: list[Any] = schema.get("enum") or [schema["const"]]
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _text(text: str) -> str:
    """Return the text as one line, with table and HTML characters escaped."""
    line = " ".join(text.split())
    return re.sub(r"[|<]", lambda sign: {"|": "\\|", "<": "&lt;"}[sign[0]], line)
