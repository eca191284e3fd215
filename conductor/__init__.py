"""The core of Podium: a model, the conductor, writes a plan, and other models, the workers, run its steps.

This package contains plans, prompts, the interface to a model, budgets, deadlines and events. It does not use
HTTP, Ray, OpenTelemetry, files or the API of any provider. Its only dependency is msgspec.
"""
