"""Shared by the command-line programs: option types, percentiles, a machine's description, plots.

Knows no models, servers or questions, and imports no other package of this repository.
"""
