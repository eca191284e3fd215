"""What a worker's `fallbacks` may hold: others' names, each once. Whether there are such workers is looked at where all are known."""

from typing import cast


def check_fallbacks(said: object, worker: str) -> None:
    """Look at what the settings say.

    A name that is there twice, or the worker's own, would be asked again with all its tries where it has just failed, and
    would pass for a free stand-in, for whose sake the call before it is given less time.

    Args:
        said: as it was written.
        worker: the name of the worker whose they are.

    Raises:
        ValueError: it is no list of names, or a name is one too many.
    """
    if said == "auto":
        return
    if not isinstance(said, list | tuple):
        raise ValueError("is a list of workers' names, or `auto`")
    names = cast(list[object] | tuple[object, ...], said)
    for number, name in enumerate(names):
        if not isinstance(name, str):
            raise ValueError("is a list of workers' names, or `auto`")
        if name == worker:
            raise ValueError(
                f"names {name!r}, the worker itself, which has just failed when they are asked. Take the name out"
            )
        if name in names[:number]:
            raise ValueError(
                f"names {name!r} twice, and it has failed once when it is asked again. Take the second name out"
            )
