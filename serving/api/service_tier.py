"""OpenAI's `service_tier` as a priority, and back. It changes when a call is made here, never what a provider is asked
for: its tiers have prices of their own.
"""

from typing import Literal

from conductor.model.priority import Priority

Tier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
"""Those that OpenAI's APIs know. Another word is refused: who writes `Flex` or `batch` means to wait, and would not."""
FLEX = "flex"


def priority_of(tier: Tier | None) -> Priority:
    """`flex` can wait; every other tier is how requests are served anyway."""
    return "batch" if tier == FLEX else "interactive"


def tier_of(priority: Priority) -> str:
    """The tier by which a request was served."""
    return FLEX if priority == "batch" else "default"
