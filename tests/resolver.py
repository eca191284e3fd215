"""Resolver with fixed answers for some names. All other names use the network's resolver."""

import socket
import threading
from typing import Any

import pytest

from serving.egress.names import NAMES

_getaddrinfo = socket.getaddrinfo


class Names:
    """Answers per name: one per look-up. The last one repeats."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answers: dict[str, list[tuple[str, ...]]] = {}
        self.looked_up: list[str] = []
        self.released = threading.Event()
        """Set to end the look-ups that hang."""
        self._hanging: set[str] = set()
        NAMES.forget()
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def lead(self, name: str, *answers: str | tuple[str, ...]) -> None:
        """Let `name` have these addresses, in turn. A tuple is one answer with several addresses."""
        self._answers[name] = [(each,) if isinstance(each, str) else each for each in answers]

    def hang(self, name: str) -> None:
        """Let look-ups of `name` wait until `released` is set."""
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
        return [entry for each in addresses for entry in _getaddrinfo(each, port, type=socket.SOCK_STREAM)]
