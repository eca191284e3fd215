"""Attacks on a server that ordinary clients use: `make siege`.

An attacker in its own process holds thousands of idle connections or unfinished bodies, or sends huge headers
or prompts. Meanwhile ordinary streams run, an ordinary request is sent every second, and `/healthz` is
probed. The attack must not affect any of them.
"""
