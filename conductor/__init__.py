"""The idea, in plain Python: a conductor model writes a plan, and the plan is run.

Knows: plans, prompts, the port to a model, money, deadlines, events.
Does not know: HTTP, Ray, OpenTelemetry, any provider, any file. Standard library only.
"""
