"""Parser that finds the point in a model's output at which it continues a given text, without repetition or gaps.

A model that is asked to continue may drop whitespace, start its sentence again, or answer from the start.
Without an overlap, `four` cannot be distinguished from ` four`. Therefore the model is asked to start with a mark
(`[continued]`) and the last words of the text, which are called the anchor. If the anchor matches exactly,
the output after it is new text. The mark shows that the anchor is a repetition. Without it, the same words
could be the next line of an answer with equal lines. The model may also start its repetition before the
anchor. If the anchor occurs only once in the text, its position shows how much the model repeats. If the
position is ambiguous, the continuation is rejected.
"""

from itertools import takewhile

MARK = "[continued]"

LEAST_CHARS = 24
"""Minimum length of an anchor: about four words."""
MOST_CHARS = 960
"""Maximum length of an anchor, about 240 tokens. It grows until it is unique in the text."""
WHOLE_CHARS = 80
"""Minimum length of a text that may be repeated without the mark. A shorter one may be new text."""
INSIDE_CHARS = 40
"""Like `WHOLE_CHARS`, for a text that ends inside a line: equal rows repeat only between line ends."""
WORD_CHARS = 40
"""Maximum length of a word in an anchor. Longer ones are cut, because some scripts have no spaces."""


class NotContinued(ValueError):
    """Raised if the output does not continue the text."""


def anchor_of(prefix: str) -> str:
    """Return the last words of `prefix`, stripped. They are unique or about `MOST_CHARS` characters long."""
    whole, anchor = prefix.rstrip(), ""
    for length in range(LEAST_CHARS, MOST_CHARS + 1, LEAST_CHARS):
        anchor = whole[_word_begin(whole, len(whole) - length) :].lstrip()
        if whole.find(anchor) == len(whole) - len(anchor):
            break
    return anchor


def _word_begin(text: str, at: int) -> int:
    """Return the index at which the word at index `at` starts."""
    if at <= 0:
        return 0
    for begin in range(at, max(at - WORD_CHARS, 0), -1):
        if text[begin - 1].isspace():
            return begin
    return at


class Seam:
    """Incremental parser that finds the new text of a model that continues `prefix`, which is not blank."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._whole = prefix, prefix.rstrip()
        self.blanks = prefix[len(self._whole) :]
        """Whitespace at the end of the prefix."""
        self.anchor = anchor_of(prefix)
        self.repeated = ""
        """The part of the output before the new text. It is set once the new text is known."""
        self._output = ""

    @property
    def beginning(self) -> str:
        """Text that the model is asked to write first: the mark, then the anchor."""
        return f"{MARK} {self.anchor}"

    def feed(self, text: str, *, is_last: bool = False) -> str | None:
        """Add a piece of output. Return the new text once, or None if more is needed. Raise NotContinued for
        other text, or an ambiguous position.
        """
        self._output += text
        new = self._find_new(is_last=is_last)
        if new is not None:
            self.repeated = self._output[: len(self._output) - len(new)]
        return new

    def _find_new(self, *, is_last: bool) -> str | None:
        output = self._output.lstrip()
        if MARK.startswith(output[: len(MARK)]):
            if len(output) <= len(MARK) and not is_last:
                return None
            return self._after_mark(output[len(MARK) :].lstrip(), is_last=is_last)
        if len(self._whole) < self._least_whole_chars() or not output.startswith(self._whole[: len(output)]):
            raise NotContinued(f"The continuation does not start with {MARK}.")
        if self._whole[:LEAST_CHARS] in self._whole[1:]:  # the next of equal rows starts with the same words
            raise NotContinued(
                f"The continuation does not start with {MARK}, and the first words of the answer occur more than once in it."
            )
        if len(output) < len(self._whole):
            return self._wait(is_last=is_last)
        return self._after_whole(output[len(self._whole) :], is_last=is_last)

    def _least_whole_chars(self) -> int:
        """Return the minimum length of the prefix for which a repetition without the mark is accepted."""
        has_gap = bool(self.blanks) or self._output[:1].isspace()
        return INSIDE_CHARS if self._whole[-1].isalnum() and not has_gap else WHOLE_CHARS

    def _after_whole(self, rest: str, *, is_last: bool) -> str | None:
        """Return the new text in `rest`, which follows a complete repetition of the prefix without the mark.

        If the prefix is short, a `rest` that looks like another repetition of the same line is rejected.
        """
        if len(self._whole) < WHOLE_CHARS:
            in_line = rest.lstrip(" ")
            is_again = self._whole.startswith(in_line[:LEAST_CHARS])
            if is_again and len(in_line) < LEAST_CHARS and not is_last:
                return None
            if is_again or in_line[0] in "\r\n":
                raise NotContinued(
                    f"The continuation does not start with {MARK}, so it may be new text with the same words."
                )
        return self._after_blanks(rest, is_last=is_last)

    def _wait(self, *, is_last: bool) -> None:
        if is_last:
            raise NotContinued("The continuation ends before the last words of the answer.")

    def _after_mark(self, output: str, *, is_last: bool) -> str | None:
        at = output.find(self.anchor)
        if at < 0:
            if output not in self._prefix:
                raise NotContinued("The continuation does not start with the last words of the answer.")
            return self._wait(is_last=is_last)
        end = at + len(self.anchor)
        if not self._whole.endswith(output[:end]):
            raise NotContinued("The continuation has different text before the last words of the answer.")
        longer = self._longer_end(output, end)
        if longer is None:
            return self._after_blanks(output[end:], is_last=is_last)
        if is_last or longer <= len(output):
            raise NotContinued("The continuation matches the answer in more than one place.")
        return None

    def _longer_end(self, output: str, end: int) -> int | None:
        """Return a longer suffix of the prefix than `end` that `output` may start with, or None if the
        position is certain.
        """
        at = len(self._whole) - end
        while (at := self._whole.rfind(output[:end], 0, at + end - 1)) >= 0:
            if self._whole.startswith(output[: len(self._whole) - at], at):
                return len(self._whole) - at
        return None

    def _after_blanks(self, rest: str, *, is_last: bool) -> str | None:
        """Return `rest` without whitespace that ends the prefix, or None if more output is needed."""
        if not self.blanks:
            return rest
        words = rest.lstrip()
        if not words:
            return "" if is_last else None
        gap = rest[: len(rest) - len(words)]
        if gap.startswith(self.blanks):
            return rest[len(self.blanks) :]
        if gap and self.blanks.startswith(gap):
            return words
        raise NotContinued("The continuation has different whitespace after the last words of the answer.")


def drop_blanks(blanks: str, text: str) -> str:
    """Remove from the start of `text` the whitespace that it shares with `blanks`, the end of the prefix."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(blanks, text, strict=False))
    return text[len(list(same)) :]
