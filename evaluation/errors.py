"""Errors that the user who started an evaluation can fix. Every other failure is data: a failed answer."""

from conductor.errors import PodiumError

HOW_TO_INSTALL = "In a checkout, run `make setup-learning`; elsewhere, pip install 'podium[evaluation]'."
"""The remedy where a package is missing."""


class EvaluationError(PodiumError):
    """An evaluation cannot be done as asked; the message names the field or file and the remedy."""
