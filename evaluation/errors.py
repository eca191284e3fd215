"""What the person who started an evaluation can mend. Everything else is a failed answer, and data."""

from conductor.errors import PodiumError


class EvaluationError(PodiumError):
    """An evaluation cannot be done as it was asked for; the message names the field or file and the remedy."""
