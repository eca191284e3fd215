"""docs/settings.md, which is generated from the settings models."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from podium.docs.settings_page import SECTIONS, generate, own_fields
from serving.settings.settings import Settings

pytestmark = pytest.mark.usefixtures("without_collector")


def test_every_setting_has_a_description() -> None:
    silent = [
        f"{title}: {name}"
        for title, model in SECTIONS
        for name, text in own_fields(model).items()
        if not text
    ]
    assert not silent, "write a docstring below the field"


def test_the_page_has_every_class_of_settings() -> None:
    section_models = {model for _, model in SECTIONS}
    assert not [model for model in set(models(Settings)) - section_models if own_fields(model)]


def models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the settings classes within a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models(field.annotation)
    for inner in get_args(annotation):
        yield from models(inner)


def test_every_link_of_the_page_points_to_a_title() -> None:
    titles = re.findall(r"^## (.+)$", generate(), re.MULTILINE)
    anchors = {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}
    assert set(re.findall(r"\(#([^)]+)\)", generate())) <= anchors
