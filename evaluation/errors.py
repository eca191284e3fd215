"""What the person who started an evaluation can mend. Everything else is a failed answer, and data."""

from conductor.errors import PodiumError

HOW_TO_INSTALL = "In a checkout, run `make setup-learning`; elsewhere, pip install 'podium[evaluation]'."
"""Where a package is missing."""


class EvaluationError(PodiumError):
    """An evaluation cannot be done as it was asked for; the message names the field or file and the remedy."""
