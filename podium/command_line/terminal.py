"""Remove terminal control characters from the text of servers and models.

Uses only the standard library, so that `podium doctor` works if packages are missing.
"""

import json
import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""ASCII control characters and Unicode direction marks that could move the cursor or reverse a line."""


def inert(text: str) -> str:
    """Return `text` with every control character replaced by U+FFFD."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def inert_json(value: object, *, indent: int | None = None) -> str:
    """Return `value` as readable JSON with escaped control characters. It parses to the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
