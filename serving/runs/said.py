"""What a run has said of its answer so far, for whoever begins to watch it in the middle."""

import io

from conductor.run.events import AnswerDelta


class AnswerSoFar:
    """Pieces of an answer, joined as they come."""

    def __init__(self) -> None:
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        self._began_s: float | None = None

    def add(self, piece: AnswerDelta) -> None:
        """One more."""
        if self._began_s is None:
            self._began_s = piece.at_s
        self._text.write(piece.text)
        self._reasoning.write(piece.reasoning)

    def take(self) -> AnswerDelta | None:
        """All of them as one, which are forgotten here; None where there is none."""
        began_s, self._began_s = self._began_s, None
        piece = AnswerDelta(began_s or 0.0, self._text.getvalue(), self._reasoning.getvalue())
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        return None if began_s is None else piece
