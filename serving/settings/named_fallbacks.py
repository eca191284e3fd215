"""Check of a worker's `fallbacks`: names of other workers, each once. `Settings` checks that these workers
exist.
"""

from typing import cast


def check_fallbacks(fallbacks: object, worker: str) -> None:
    """Check the fallbacks of a worker as written in the settings.

    A duplicate, or the worker's own name, would be called again right after it failed. It would also count as
    a free fallback, and so shorten the time limits of the call before it.

    Args:
        fallbacks: the value in the settings.
        worker: name of the worker.

    Raises:
        ValueError: it is not a list of names, or has a duplicate or the worker's own name.
    """
    if fallbacks == "auto":
        return
    if not isinstance(fallbacks, list | tuple):
        raise ValueError("must be a list of worker names, or `auto`")
    names = cast(list[object] | tuple[object, ...], fallbacks)
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise ValueError("must be a list of worker names, or `auto`")
        if name == worker:
            raise ValueError(f"must not name the worker {name!r} itself")
        if name in names[:number]:
            raise ValueError(f"must not name {name!r} more than once")
