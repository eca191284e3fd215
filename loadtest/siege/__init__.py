"""Ordinary clients during an attack: `make siege`.

An attacker in a process of its own holds thousands of idle connections or unfinished bodies, or sends huge
headers or prompts. Meanwhile ordinary streams run, an ordinary request is sent every second, and `/healthz`
is probed. None of them may notice.
"""
