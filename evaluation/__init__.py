"""Compare strategies for answering questions. This package has question sets, graders, strategies and the
report.
"""

from conductor.errors import PodiumError

HOW_TO_INSTALL = (
    "In a checkout, run `make setup-learning`. Elsewhere, run `pip install 'podium[evaluation]'`."
)
"""Remedy in messages about a missing package."""


class EvaluationError(PodiumError):
    """An evaluation cannot run as requested. The message names the field or file and the remedy."""
