"""Who is sent a call: one place where one worker is reached."""

from dataclasses import dataclass

from conductor.model.usage import Price


@dataclass(frozen=True, slots=True)
class Callee:
    """A worker, at one of its places.

    Args:
        worker: its name in the pool.
        deployment: which of its places; empty where it has one.
        price: per token, there; None: nobody said.
    """

    worker: str
    deployment: str = ""
    price: Price | None = None
