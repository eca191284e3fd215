"""Shared by the command-line programs: verbs and their options, terminal output, processes, plots.

Knows no models, servers or questions, and imports no other package of this repository.
"""
