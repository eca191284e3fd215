"""Names that lead where a test says, in place of the network's resolver; every other name is asked as ever."""

import socket
from typing import Any

import pytest

_getaddrinfo = socket.getaddrinfo


class Names:
    """What each name leads to: one answer a look-up, the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers: dict[str, list[tuple[str, ...]]] = {}
        self.looked_up: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def lead(self, name: str, *answers: str | tuple[str, ...]) -> None:
        """`name` has these addresses, in turn; a tuple is several at once."""
        self._answers[name] = [(each,) if isinstance(each, str) else each for each in answers]

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        answers = self._answers.get(name)
        if answers is None:
            return _getaddrinfo(host, port, *args, **kwargs)
        self.looked_up.append(name)
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [found for each in addresses for found in _getaddrinfo(each, port, type=socket.SOCK_STREAM)]
