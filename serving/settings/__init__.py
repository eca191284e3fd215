"""Settings files: their fields, checks, derived values, and the sources of API keys."""
