"""What a server said, or a model, as text that no terminal obeys. Knows no tables and no colours, so that `podium doctor`
has it where packages are missing.
"""

import json
import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Of ASCII and of Unicode's direction marks, those that could move a cursor or turn a line around."""


def inert(text: str) -> str:
    """`text` without what a terminal would obey."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def inert_json(value: object, *, indent: int | None = None) -> str:
    """`value` as JSON in readable characters, with escapes for what a terminal would obey. It reads back as it was."""
    written = json.dumps(value, ensure_ascii=False, indent=indent)
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
