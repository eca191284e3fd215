"""Call a function periodically during a run, in a thread, or in a greenlet if Locust has patched threads."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def every(seconds: float, do: Callable[[], None]) -> Generator[None]:
    """Call `do` every `seconds` while the block runs, and once more at its end."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            do()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)
        do()
