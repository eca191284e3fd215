"""The server as the command line sees it: an address, a key from the environment, answers and errors in words.

What speaks HTTP is imported after the options are read.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from program.inert import inert
from program.options import url

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]
URL_VARIABLE, KEY_VARIABLE = "PODIUM_URL", "PODIUM_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
FAILED, WRONG_COMMAND, NOT_REACHED, NOT_ALLOWED = 1, 2, 3, 4
EXIT_CODES = (
    "Exit code: 0, 1 where the server refuses or the run fails, 2 for a wrong command line, 3 where no server can be "
    "reached, 4 where its key is missing or may not do this, 130 after Ctrl-C."
)
JSON, EVENT_STREAM = "application/json", "text/event-stream"
OTHER_SERVER = "Name Podium's own address with --url."
SILENT_S = 600.0
"""The longest wait for the next byte: a cold engine may take minutes to its first token."""


class ClientError(Exception):
    """What a command cannot go on after.

    Args:
        message: what happened and what to do, for people.
        exit_code: the command's.
    """

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def parser_of(verb: str, description: str, example: str) -> argparse.ArgumentParser:
    """A parser for a verb that asks a server."""
    parser = argparse.ArgumentParser(
        prog=f"podium {verb}", description=description, epilog=f"{EXIT_CODES} Example: {example}"
    )
    add_url(parser)
    return parser


def add_url(parser: argparse.ArgumentParser) -> None:
    """The option that names the server."""
    parser.add_argument(
        "--url",
        type=url,
        default=os.environ.get(URL_VARIABLE, DEFAULT_URL),
        help=f"of the server; the variable {URL_VARIABLE} says it too ({DEFAULT_URL}). The key is in {KEY_VARIABLE}",
    )


def run(command: Callable[[], int]) -> int:
    """`command`'s exit code; where it cannot go on, that of the error, which is told on stderr."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except ClientError as error:
        tell(error)
        return error.exit_code
    except BrokenPipeError:  # the reader has seen enough: `podium runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def find_key() -> str:
    """The key in the environment; empty: there is none.

    Raises:
        ClientError: what is there is no key. What would send it would repeat it in an error.
    """
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ClientError(f"{KEY_VARIABLE} holds no key: there are other characters in it.", NOT_ALLOWED)
    return key


def path_part(id: str) -> str:
    """`id` as one part of an address: what a person typed, or a server said, leads nowhere else.

    Raises:
        ClientError: no part of an address can be that: `..` is the part before.
    """
    if id in ("", ".", ".."):
        raise ClientError(f"{id!r} is no id and no name. Lists show them.", FAILED)
    return quote(id, safe="")


def tell(error: ClientError) -> None:
    """Say on stderr what went wrong. A server's words may repeat a model's: no control character of them is told."""
    print(f"podium: {inert(str(error))}", file=sys.stderr)


class Client:
    """Requests to one server.

    Args:
        address: such as `http://127.0.0.1:8000`.
        key: sent with each request; empty: none is.
    """

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._http = connect(address, key)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Client:
        """The one that the options and the environment name.

        Raises:
            ClientError: what the environment holds is no key.
        """
        return cls(options.url, find_key())

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        """The JSON at `path`.

        Raises:
            ClientError: there is none, or no server.
        """
        given = {name: value for name, value in (params or {}).items() if value is not None}
        with self._explaining():
            return self._json(self._http.get(path, params=given))

    def post(self, path: str, body: Json) -> Json:
        """The JSON that the server answers to `body`.

        Raises:
            ClientError: it refuses, or there is no server.
        """
        with self._explaining():
            return self._json(self._http.post(path, json=body))

    def delete(self, path: str) -> Json:
        """The JSON that the server answers, once what is at `path` is no more.

        Raises:
            ClientError: it refuses, or there is no server.
        """
        with self._explaining():
            return self._json(self._http.delete(path))

    @contextmanager
    def stream(self, method: str, path: str, body: Json | None = None) -> Generator[Stream]:
        """Server-sent events.

        Raises:
            ClientError: the server refuses or goes away, or there is none.
        """
        with self._explaining(), self._http.stream(method, path, json=body) as answer:
            if answer.status_code >= 400:
                answer.read()
            yield Stream(self._check(answer, EVENT_STREAM))

    def _json(self, answer: httpx2.Response) -> Json:
        """The JSON object of an answer.

        Raises:
            ClientError: it is an error, or no JSON object.
        """
        body: object = None
        with suppress(ValueError):
            body = json.loads(self._check(answer, JSON).content, object_hook=Answer)
        if not isinstance(body, Answer) or not isinstance(body.get("data", []), list | str | dict):
            raise ClientError(
                f"{self._address} answers {answer.status_code} without a whole JSON object. {OTHER_SERVER}"
            )
        return body

    def _check(self, answer: httpx2.Response, content_type: str) -> httpx2.Response:
        """The answer, unless it is an error, a redirect or something else than what was asked for.

        Raises:
            ClientError: it is.
        """
        if answer.status_code < 300:
            told = answer.headers.get("content-type", "")
            if told and told.partition(";")[0].strip().lower() != content_type:
                raise ClientError(
                    f"{self._address} answers with {told[:80]}, not with {content_type}. {OTHER_SERVER}"
                )
            return answer
        if answer.status_code < 400:
            to = answer.headers.get("location", "")[:200]
            raise ClientError(
                f"{self._address} answers {answer.status_code}, a redirect{f' to {to}' if to else ''}. {OTHER_SERVER}"
            )
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"{self._address} answers {answer.status_code}, and not as Podium does."
        if answer.status_code in (401, 403):
            message += f" This command sends the key that is in the variable {KEY_VARIABLE}."
            raise ClientError(message, NOT_ALLOWED)
        if later := answer.headers.get("retry-after"):
            message += f" Try again in {later} s."
        raise ClientError(message)

    @contextmanager
    def _explaining(self) -> Generator[None]:
        import httpx2

        try:
            yield
        except httpx2.ConnectError:
            raise ClientError(
                f"Nothing answers at {self._address}. Start a server with `make serve`, or name one with --url.",
                NOT_REACHED,
            ) from None
        except httpx2.TimeoutException:
            raise ClientError(f"{self._address} has been silent for too long.", NOT_REACHED) from None
        except httpx2.DecodingError as error:
            message = f"{self._address} answers with a body that cannot be read: {error}. {OTHER_SERVER}"
            raise ClientError(message) from None
        except httpx2.TransportError as error:
            message = f"The connection to {self._address} broke: {error}. The run may go on: `podium runs` shows it."
            raise ClientError(message, NOT_REACHED) from None


def connect(address: str, key: str, timeout_s: float = SILENT_S) -> httpx2.Client:
    """Connections to the server at `address`.

    Args:
        address: such as `http://127.0.0.1:8000`.
        key: sent with each request; empty: none is.
        timeout_s: the longest wait for the next byte.
    """
    import httpx2

    return httpx2.Client(
        base_url=address,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(timeout_s, connect=10),
        trust_env=not _is_loopback(address),  # no proxy stands before this machine
        verify=urlsplit(address).scheme == "https",  # reading the certificates takes 40 ms
    )


class Answer(dict[str, Any]):
    """A JSON object of a server."""

    def __missing__(self, name: str) -> Any:
        """Raise an error that says which field the server left out.

        Raises:
            ClientError: always.
        """
        raise ClientError(f"The server's answer has no field {name!r}. {OTHER_SERVER}")


class Stream:
    """Server-sent events of one answer.

    Args:
        answer: whose status says that it went well.
    """

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer
        self.is_whole = False
        """Whether the event was read that ends a stream: `[DONE]`, or one of the type `end`."""

    @property
    def run_id(self) -> str:
        """The id of the run that was asked for."""
        return str(self._answer.headers.get("x-podium-workflow-id", ""))

    def __iter__(self) -> Generator[Json]:
        """The JSON of each event; `[DONE]` is no event.

        Raises:
            ClientError: an event is no JSON object.
        """
        for line in self._answer.iter_lines():
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:"):
                continue
            if data == "[DONE]":
                self.is_whole = True
                continue
            event: object = None
            with suppress(ValueError):
                event = json.loads(data, object_hook=Answer)
            if not isinstance(event, Answer):
                raise ClientError(f"The server sent an event that is no JSON object: {data[:80]!r}.")
            self.is_whole |= event.get("type") == "end"
            yield event


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
