"""Code that all command-line programs share: verbs and their options, terminal output, processes, plots.

It does not depend on models or servers, and imports no other package of this repository.
"""
