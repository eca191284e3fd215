"""OpenAI's `service_tier` as a priority, and back. It changes when a call is made here, never what a provider is asked
for: its tiers have prices of their own.
"""

from conductor.model.priority import Priority

FLEX = "flex"


def priority_of(tier: object) -> Priority:
    """`flex` can wait; every other tier, known or not, is how requests are served anyway."""
    return "batch" if tier == FLEX else "interactive"


def tier_of(priority: Priority) -> str:
    """The tier by which a request was served."""
    return FLEX if priority == "batch" else "default"
