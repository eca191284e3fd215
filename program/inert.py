"""What a server said, or a model, as text that no terminal obeys. Knows no tables and no colours, so that `podium doctor`
has it where packages are missing.
"""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Of ASCII and of Unicode's direction marks, those that could move a cursor or turn a line around."""


def inert(text: str) -> str:
    """`text` without what a terminal would obey."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
