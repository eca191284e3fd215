"""Podium on one machine: set-up, the local server and its processes, the demo.

Imports the standard library only, so that set-up can run before any package is installed.
"""
