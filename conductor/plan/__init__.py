"""A plan: as a value, as the text that a conductor writes, and as the prompts it leads to."""
