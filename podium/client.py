"""HTTP client of the command-line programs, with the API key from the environment and readable errors.

httpx2 is imported only after the options are parsed.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from podium.command_line.options import parse_url
from podium.command_line.program import CommandError

if TYPE_CHECKING:
    import httpx2

Json = dict[str, Any]
URL_VARIABLE, KEY_VARIABLE = "PODIUM_URL", "PODIUM_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
FAILED, WRONG_COMMAND, NOT_REACHED, NOT_ALLOWED = 1, 2, 3, 4
EXIT_CODES = (
    "Exit code: 0 on success, 1 if the server rejects the request or the run fails, 2 for a usage error, 3 if the server cannot be "
    "reached, 4 if the API key is missing or lacks permission, 130 after Ctrl-C."
)
JSON, EVENT_STREAM = "application/json", "text/event-stream"
OTHER_SERVER = "Set --url to the address of Podium."
SILENT_S = 600.0
"""Read timeout in seconds. An engine that has just started may take minutes to produce its first token."""


Url = Annotated[
    str,
    typer.Option(
        "--url",
        parser=parse_url,
        envvar=URL_VARIABLE,
        help=f"address of the server; the API key is read from {KEY_VARIABLE}",
    ),
]
"""Option of the verbs that call a server."""


class ClientError(CommandError):
    """Error that ends a command, such as a rejected request or a malformed key."""


def epilog(example: str) -> str:
    """Return the text at the end of a verb's help: its exit codes and an example."""
    return f"{EXIT_CODES}\n\nExample: {example}"


def find_key() -> str:
    """Return the key in the environment, or "". Reject characters that the HTTP client's error would show."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ClientError(
            f"{KEY_VARIABLE} is not a valid API key, because it has non-ASCII or control characters.",
            NOT_ALLOWED,
        )
    return key


def path_part(id: str) -> str:
    """Quote `id` as one segment of a path, so that it cannot change what is requested. Reject `.` and `..`."""
    if id in ("", ".", ".."):
        raise ClientError(
            f"{id!r} is not a valid id or name. Find it with a list command, such as `podium runs`.", FAILED
        )
    return quote(id, safe="")


class Client:
    """Requests to one server at its base URL, with an API key or ""."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._http = connect(address, key)

    @classmethod
    def open(cls, address: str) -> Client:
        """Open a client that uses the key in the environment."""
        return cls(address, find_key())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Suppress the error if the process that reads stdout has ended, as in `podium runs | head`."""
        try:
            sys.stdout.flush()
        except BrokenPipeError as broken:
            error = broken
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return isinstance(error, BrokenPipeError)

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Json:
        """Send a GET request to `path` and return the JSON response. Raise ClientError if that fails."""
        query = {name: value for name, value in (params or {}).items() if value is not None}
        with self._explaining():
            return self._json(self._http.get(path, params=query))

    def post(self, path: str, body: Json) -> Json:
        """Send `body` in a POST request and return the JSON response. Raise ClientError if that fails."""
        with self._explaining():
            return self._json(self._http.post(path, json=body))

    def delete(self, path: str) -> Json:
        """Send a DELETE request and return the JSON response. Raise ClientError if that fails."""
        with self._explaining():
            return self._json(self._http.delete(path))

    @contextmanager
    def stream(self, method: str, path: str, body: Json | None = None) -> Generator[Stream]:
        """Send a request and open its server-sent events. Raise ClientError if that fails."""
        with self._explaining(), self._http.stream(method, path, json=body) as answer:
            if answer.status_code >= 400:
                answer.read()
            yield Stream(self._check(answer, EVENT_STREAM))

    def _json(self, answer: httpx2.Response) -> Json:
        """Return the JSON object of a response, or raise ClientError."""
        body: object = None
        with suppress(ValueError):
            body = json.loads(self._check(answer, JSON).content, object_hook=Answer)
        if not isinstance(body, Answer) or not isinstance(body.get("data", []), list | str | dict):
            raise ClientError(
                f"{self._address} returned status {answer.status_code} without a complete JSON object. {OTHER_SERVER}"
            )
        return body

    def _check(self, answer: httpx2.Response, content_type: str) -> httpx2.Response:
        """Return a successful response of the expected content type, or raise ClientError."""
        if answer.status_code < 300:
            actual_type = answer.headers.get("content-type", "")
            if actual_type and actual_type.partition(";")[0].strip().lower() != content_type:
                raise ClientError(
                    f"{self._address} returned {actual_type[:80]} instead of {content_type}. {OTHER_SERVER}"
                )
            return answer
        if answer.status_code < 400:
            to = answer.headers.get("location", "")[:200]
            raise ClientError(
                f"{self._address} returned status {answer.status_code}, a redirect{f' to {to}' if to else ''}. {OTHER_SERVER}"
            )
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = (
                f"{self._address} returned status {answer.status_code} without an error message of Podium."
            )
        if answer.status_code in (401, 403):
            message += f" This command sends the API key in {KEY_VARIABLE}."
            raise ClientError(message, NOT_ALLOWED)
        if later := answer.headers.get("retry-after"):
            message += f" Retry in {later} s."
        raise ClientError(message)

    @contextmanager
    def _explaining(self) -> Generator[None]:
        import httpx2

        try:
            yield
        except httpx2.ConnectError:
            raise ClientError(
                f"Cannot connect to {self._address}. Start a server with `podium serve`, or set --url.",
                NOT_REACHED,
            ) from None
        except httpx2.TimeoutException:
            raise ClientError(f"{self._address} did not respond in time.", NOT_REACHED) from None
        except httpx2.DecodingError as error:
            message = f"The response body of {self._address} cannot be decoded: {error}. {OTHER_SERVER}"
            raise ClientError(message) from None
        except httpx2.TransportError as error:
            message = f"The connection to {self._address} was lost: {error}. The run may continue. See `podium runs`."
            raise ClientError(message, NOT_REACHED) from None


def connect(address: str, key: str, timeout_s: float = SILENT_S) -> httpx2.Client:
    """Open an HTTP client for the base URL `address`, with an API key or ""."""
    import httpx2

    return httpx2.Client(
        base_url=address,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx2.Timeout(timeout_s, connect=10),
        trust_env=not _is_loopback(address),  # a proxy cannot reach this machine's loopback
        verify=urlsplit(address).scheme == "https",  # loading the certificates takes 40 ms
    )


class Answer(dict[str, Any]):
    """JSON object in a response of the server. Reading a missing field raises a readable error."""

    def __missing__(self, name: str) -> Any:
        """Raise a ClientError that names the missing field."""
        raise ClientError(f"The server's response has no field {name!r}. {OTHER_SERVER}")


class Stream:
    """Server-sent events of a successful response whose body has not been read."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._answer = answer
        self.is_whole = False
        """True if the final event has been read: `[DONE]`, or an event of type `end`."""

    @property
    def run_id(self) -> str:
        """Id of the run that the request started, or "" if the server sent none."""
        return str(self._answer.headers.get("x-podium-workflow-id", ""))

    def __iter__(self) -> Generator[Json]:
        """Yield the JSON object of each event without the `[DONE]` marker, or raise ClientError."""
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
                raise ClientError(f"The server sent an event that is not a JSON object: {data[:80]!r}.")
            self.is_whole |= event.get("type") == "end"
            yield event


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
