"""Names of large packages that are imported at their first use, so that collecting the tests does not import them."""

from importlib import import_module
from typing import Any


class _Lazy:
    def __init__(self, module: str, name: str) -> None:
        self._where = module, name

    def _load(self) -> Any:
        module, name = self._where
        return getattr(import_module(module), name) if name else import_module(module)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks at each name of a module
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._load()(*args, **named)


def lazy(where: str) -> Any:
    """Return a stand-in for a module, or for the function or class `module:name`, which can be called."""
    module, _, name = where.partition(":")
    return _Lazy(module, name)
