"""One request from its task to its record: rounds, plans, calls, money, events."""
