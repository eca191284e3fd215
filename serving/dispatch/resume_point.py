"""Where an answer goes on that another call began: nothing of it twice, nothing missing, nothing else instead.

A model that is asked to go on drops blanks, begins its sentence again, or answers from the start, and at a seam
without overlap nobody can tell `four` from ` four`. So it is asked to begin with a mark and with the last words that are
there, the anchor: where these come exactly, what follows them is the rest. The mark says that they are a repetition, and
not the next of two equal lines. It begins with the anchor or before it, so an anchor that stands in one place only says
how much of it is repetition; where that is open, nothing is taken. Knows texts; does not know who says them.
"""

MARK = "[continued]"

LEAST_CHARS = 24
"""Of an anchor: about four words."""
MOST_CHARS = 960
"""It grows to this where its words occur before, so that it is found in one place only: a table of equal rows. It is
said again, and paid: about 240 tokens.
"""
WHOLE_CHARS = 80
"""Of an answer that comes whole once more, without a mark: a shorter one may be the next of equal words."""
INSIDE_CHARS = 40
"""The same if the answer broke off inside a line: equal rows repeat from the end of one to the end of the next."""
WORD_CHARS = 40
"""A longer word is cut: some scripts have no blanks."""


class NotContinued(ValueError):
    """What came does not go on with what was there."""


def anchor_of(prefix: str) -> str:
    """The last words of `prefix`, which stand nowhere else in it where that can be had; without blanks around them."""
    whole, anchor = prefix.rstrip(), ""
    for length in range(LEAST_CHARS, MOST_CHARS + 1, LEAST_CHARS):
        anchor = whole[_word_begin(whole, len(whole) - length) :].lstrip()
        if whole.find(anchor) == len(whole) - len(anchor):
            break
    return anchor


def _word_begin(text: str, at: int) -> int:
    """Where the word begins that `at` is in."""
    if at <= 0:
        return 0
    for begin in range(at, max(at - WORD_CHARS, 0), -1):
        if text[begin - 1].isspace():
            return begin
    return at


class Seam:
    """Takes what a model says that is asked to go on with `prefix`, and gives what is new in it.

    Args:
        prefix: what is there; not blank.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix, self._whole = prefix, prefix.rstrip()
        self.blanks = prefix[len(self._whole) :]
        """At the end of what is there."""
        self.anchor = anchor_of(prefix)
        self.repeated = ""
        """What was said before what is new, once that is known."""
        self._held = ""

    @property
    def beginning(self) -> str:
        """What it is to begin with."""
        return f"{MARK} {self.anchor}"

    def feed(self, text: str, *, is_last: bool = False) -> str | None:
        """What is new by now; None: not known yet. Not to be called again once it is.

        Args:
            text: the next piece.
            is_last: nothing comes after it.

        Raises:
            NotContinued: it begins with something else, or what is new in it cannot be told.
        """
        self._held += text
        new = self._find_new(is_last=is_last)
        if new is not None:
            self.repeated = self._held[: len(self._held) - len(new)]
        return new

    def _find_new(self, *, is_last: bool) -> str | None:
        said = self._held.lstrip()
        if MARK.startswith(said[: len(MARK)]):
            if len(said) <= len(MARK) and not is_last:
                return None
            return self._after_mark(said[len(MARK) :].lstrip(), is_last=is_last)
        if len(self._whole) < self._least_whole_chars() or not said.startswith(self._whole[: len(said)]):
            raise NotContinued("It begins with other words than it was asked to.")
        if self._whole[:LEAST_CHARS] in self._whole[1:]:  # the next of equal rows begins so as well
            raise NotContinued("It begins without the mark, and with words that come more than once.")
        if len(said) < len(self._whole):
            return self._wait(is_last=is_last)
        return self._after_whole(said[len(self._whole) :], is_last=is_last)

    def _least_whole_chars(self) -> int:
        """How long an answer must be to be recognised when it comes whole once more, without the mark."""
        has_gap = bool(self.blanks) or self._held[:1].isspace()
        return INSIDE_CHARS if self._whole[-1].isalnum() and not has_gap else WHOLE_CHARS

    def _after_whole(self, rest: str, *, is_last: bool) -> str | None:
        """`rest`, which follows all of the answer. Of a short one it must not be the next of equal lines."""
        if len(self._whole) < WHOLE_CHARS:
            in_line = rest.lstrip(" ")
            is_again = self._whole.startswith(in_line[:LEAST_CHARS])
            if is_again and len(in_line) < LEAST_CHARS and not is_last:
                return None
            if is_again or in_line[0] in "\r\n":
                raise NotContinued("It comes without the mark, and may be the next of equal lines.")
        return self._after_blanks(rest, is_last=is_last)

    def _wait(self, *, is_last: bool) -> None:
        if is_last:
            raise NotContinued("It ends before the last words that were there.")

    def _after_mark(self, said: str, *, is_last: bool) -> str | None:
        at = said.find(self.anchor)
        if at < 0:
            if said not in self._prefix:
                raise NotContinued("It does not begin with the last words that were there.")
            return self._wait(is_last=is_last)
        end = at + len(self.anchor)
        if not self._whole.endswith(said[:end]):
            raise NotContinued("Something else stands before the last words that were there.")
        longer = self._longer_end(said, end)
        if longer is None:
            return self._after_blanks(said[end:], is_last=is_last)
        if is_last or longer <= len(said):
            raise NotContinued("It may go on from more than one place.")
        return None

    def _longer_end(self, said: str, end: int) -> int | None:
        """The length of the next longer end of what is there that `said` begins with, or may still begin with; none
        where the anchor stands in one place only.

        Args:
            said: it begins with the last `end` characters of what is there.
            end: see `said`.
        """
        at = len(self._whole) - end
        while (at := self._whole.rfind(said[:end], 0, at + end - 1)) >= 0:
            if self._whole.startswith(said[: len(self._whole) - at], at):
                return len(self._whole) - at
        return None

    def _after_blanks(self, rest: str, *, is_last: bool) -> str | None:
        """`rest` without the blanks that are there already."""
        if not self.blanks:
            return rest
        words = rest.lstrip()
        if not words:
            return "" if is_last else None
        said = rest[: len(rest) - len(words)]
        if said.startswith(self.blanks):
            return rest[len(self.blanks) :]
        if said and self.blanks.startswith(said):
            return words
        raise NotContinued("Other blanks follow the last words that were there.")


def drop_blanks(blanks: str, text: str) -> str:
    """`text`, which goes on after a prefix that was sent without the `blanks` at its end, without those in it."""
    n = next(
        (n for n, (a, b) in enumerate(zip(blanks, text, strict=False)) if a != b), min(len(blanks), len(text))
    )
    return text[n:]
