"""Ordinary clients beside an attack: `make siege`.

An attacker in a process of its own holds thousands of idle connections or unfinished bodies, or sends huge headers or prompts.
Meanwhile ordinary streams run, an ordinary request comes every second, and probes ask `/healthz`. None of them may notice.
"""
