"""Buffer of an answer so far, for clients that start to watch a run in the middle."""

import io

from conductor.run.events import AnswerDelta


class AnswerSoFar:
    """Buffer that joins the pieces of an answer."""

    def __init__(self) -> None:
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        self._began_s: float | None = None

    def add(self, piece: AnswerDelta) -> None:
        """Append a piece."""
        if self._began_s is None:
            self._began_s = piece.at_s
        self._text.write(piece.text)
        self._reasoning.write(piece.reasoning)

    def take(self) -> AnswerDelta | None:
        """Return all pieces as one and clear the buffer. Return None if it is empty."""
        began_s, self._began_s = self._began_s, None
        piece = AnswerDelta(began_s or 0.0, self._text.getvalue(), self._reasoning.getvalue())
        self._text, self._reasoning = io.StringIO(), io.StringIO()
        return None if began_s is None else piece
