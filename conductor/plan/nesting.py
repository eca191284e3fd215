"""Where a text stands among its brackets, a character at a time; strings hide theirs."""

from dataclasses import dataclass


@dataclass(slots=True)
class Nesting:
    """How deep in brackets a text is, strings respected."""

    quotes: str
    depth: int = 0
    quote: str = ""
    escaped: bool = False

    def feed(self, char: str) -> None:
        if self.quote:
            if self.escaped:
                self.escaped = False
            elif char == "\\":
                self.escaped = True
            elif char == self.quote:
                self.quote = ""
        elif char in self.quotes:
            self.quote = char
        elif char in "[{(":
            self.depth += 1
        elif char in "]})":
            self.depth -= 1
