"""Where a call has gone that may be made once more, beside the first or in its place: it is better made elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass, field


def _maybe() -> bool:
    return True


def _no() -> bool:
    return False


@dataclass(slots=True, eq=False)
class Places:
    """Deployments of a provider's model, or replicas of an engine; written by whoever chooses among them."""

    taken: set[str] = field(default_factory=set[str])
    has_other: Callable[[], bool] = _maybe
    """Whether there is one where it has not gone. Nobody knows it of an address that nobody chose: many servers may be
    behind it."""

    def take(self, place: str, has_other: Callable[[], bool]) -> None:
        """The call goes to `place`."""
        self.taken.add(place)
        self.has_other = has_other

    def expect_choice(self) -> None:
        """Somebody is about to choose: until then, no other place is known."""
        self.has_other = _no

    def __reduce__(self) -> tuple[type["Places"], tuple[()]]:
        """In another process nobody chooses any more."""
        return Places, ()
