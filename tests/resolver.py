"""Names that lead where a test says, in place of the network's resolver; every other name is asked as ever."""

import socket
import threading
from typing import Any

import pytest

from serving.egress.names import NAMES

_getaddrinfo = socket.getaddrinfo


class Names:
    """What each name leads to: one answer a look-up, the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers: dict[str, list[tuple[str, ...]]] = {}
        self.looked_up: list[str] = []
        self.released = threading.Event()
        """Set it to end the look-ups that hang."""
        self._hanging: set[str] = set()
        NAMES.forget()
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def lead(self, name: str, *answers: str | tuple[str, ...]) -> None:
        """`name` has these addresses, in turn; a tuple is several at once."""
        self._answers[name] = [(each,) if isinstance(each, str) else each for each in answers]

    def hang(self, name: str) -> None:
        """No name server answers for `name`, until it is `released`."""
        self._hanging.add(name)

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        if name in self._hanging:
            self.looked_up.append(name)
            self.released.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no name server answers")
        answers = self._answers.get(name)
        if answers is None:
            return _getaddrinfo(host, port, *args, **kwargs)
        self.looked_up.append(name)
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [found for each in addresses for found in _getaddrinfo(each, port, type=socket.SOCK_STREAM)]
