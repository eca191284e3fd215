"""Self-contained HTML page of a report. Both reports have the head, the style and the plots of `page.html.j2`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2


def render(template: Path, values: Mapping[str, Any], **filters: Callable[..., str]) -> str:
    """Return the page of `template`, which extends `page.html.j2`. Its values have `title` and `plots` (SVG
    by caption).
    """
    environment: Any = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template.name).render(values)
