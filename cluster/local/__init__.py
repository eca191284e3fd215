"""Podium on one machine: set-up, the local server and its processes, the demo.

The package itself imports only the standard library, so that set-up can run before any package is installed.
"""
