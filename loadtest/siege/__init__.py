"""Attacks on a server while ordinary clients use it: `make siege`.

An attacker in its own process holds thousands of idle connections or unfinished bodies, or sends huge headers
or prompts. Meanwhile, ordinary clients read streams, send a request every second, and probe `/healthz`. The
attack must not affect any of them.
"""
