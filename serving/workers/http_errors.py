"""Mapping of HTTP failures of providers to `WorkerError`s.

This module maps HTTP statuses (with the help of `error_meaning.py`) and exceptions of the HTTP libraries. It
reads Retry-After, and removes keys from error texts. Each worker first maps the exceptions of its own SDK to
a status and a text.

An error's message is for the caller: it names the worker and what the caller can do. Its `detail` is for the
operator: it has the provider's message, the address that was called, and the settings to check.
"""

import json
import math
import re
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import anyio
import httpx2

from conductor.errors import (
    ContentFiltered,
    ContextOverflow,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.characters import whole
from conductor.model.usage import Usage
from serving.egress.reach import AddressForbidden
from serving.workers.error_meaning import Meaning, is_certain, meaning_of
from serving.workers.http_guard import BodyRefused
from serving.workers.stream_errors import error_code, status_in_stream

PROVIDERS_HOSTS = ("openai.com", "anthropic.com", "googleapis.com")
"""Domains of the providers. Error messages refer to other servers by their address."""
MAX_QUOTE_CHARS = 300
"""Maximum number of characters of a provider's message in an error's detail."""
MAX_READ_CHARS = 20_000
"""Maximum characters of a message that are processed for a quote. One may be 16 MiB long."""
MAX_RAW_CHARS = 4000
"""Maximum characters of a provider's error that a router such as OpenRouter quotes."""
WIRE_ERRORS = (
    aiohttp.ClientError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    anyio.EndOfStream,
    OSError,
    RuntimeError,
)
"""Exceptions of the HTTP libraries that the SDKs do not convert. TLS errors are `OSError`s. `RuntimeError` is
raised by a client that was closed, or that received something other than HTTP (`httpx2.StreamError`).
"""
GARBLED = (ValueError, TypeError, AttributeError, KeyError)
"""Exceptions of the SDKs' lenient decoders for a malformed chunk, when it is parsed or when a field is read.
`json.JSONDecodeError`, `UnicodeDecodeError` and pydantic's `ValidationError` are `ValueError`s."""

_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:sk|pk|gsk|xai|key)-[\w*.-]{6,}|\bAIza[\w*-]{6,}|(?<=Bearer )\S+")
_OUT_OF_MONEY = re.compile(r"insufficient_quota|billing|spend_limit")


@dataclass(frozen=True, slots=True)
class ErrorMapper:
    """Builder of one worker's errors, which name the worker and contain no secrets."""

    worker: str
    model: str
    provider: str
    """Name of the provider, such as `OpenAI`."""
    key_env: str
    """Usual environment variable of the key, such as `OPENAI_API_KEY`."""
    address: str
    """Scheme and host of the server."""
    secret: str = field(repr=False)

    def quote(self, text: str) -> str:
        """Return a provider's message on one line, shortened, with everything that looks like a key masked."""
        line = " ".join(whole(text[:MAX_READ_CHARS]).split())
        if self.secret:
            line = line.replace(self.secret, "***")
        line = _LOOKS_LIKE_A_KEY.sub("***", line)
        return line if len(line) <= MAX_QUOTE_CHARS else line[:MAX_QUOTE_CHARS] + " ..."

    @property
    def _is_providers_own(self) -> bool:
        """True if the worker calls the provider itself and not another server with the same API."""
        host = urlsplit(self.address).hostname or ""
        return any(host == own or host.endswith(f".{own}") for own in PROVIDERS_HOSTS)

    def unavailable(self, message: str, detail: str = "") -> WorkerUnavailable:
        """Return the error for a call that may be retried. `message` is for callers and has no secrets."""
        return WorkerUnavailable(message, worker=self.worker, detail=self.quote(detail))

    def odd_end(self, reason: object, usage: Usage | None) -> WorkerUnavailable:
        """Return the error for an unknown finish reason. The call is billed by `usage`, or at its maximum."""
        error = self.unavailable(
            f"{self.worker} stopped before the end of its answer. Try again.",
            f"Unknown finish reason: {reason!r}.",
        )
        error.billed_at_bound = usage is None
        return error

    def refusal(self, message: str, detail: str = "") -> WorkerRefused:
        """Return the error for a call that would be refused again. `message` is for callers and has no
        secrets.
        """
        return WorkerRefused(message, worker=self.worker, detail=self.quote(detail))

    def unreachable(self, cause: BaseException | None = None) -> WorkerError:
        """Return the error for a connection that failed or broke.

        If the causes of `cause` include an `AddressForbidden` or a `BodyRefused`, the error says so.
        """
        while cause is not None and not isinstance(cause, AddressForbidden | BodyRefused):
            cause = cause.__cause__
        if isinstance(cause, BodyRefused):
            return self.unavailable(
                f"{self.worker} failed. {self.quote(str(cause))} Try again.", f"Address: {self.address}."
            )
        if cause is not None:
            return self._config_error(
                f"{cause}, which is not allowed. If the worker's base_url is correct, set `allow_link_local: true`."
            )
        return self.unavailable(
            f"{self.worker} cannot be reached, or its connection was lost. Try again.",
            f"Address: {self.address}. Check that the server is running and that base_url is correct.",
        )

    def no_credentials(self) -> WorkerRefused:
        """Return the error for cloud credentials. The library's message may have secrets and is not quoted."""
        return self._config_error(
            f"The credentials for {self.address} are missing or were rejected. Check the credentials of the worker's `service`."
        )

    def stall(self, has_begun: bool = False) -> WorkerUnavailable:
        """Return the error for a silent server. If it `has_begun`, the call is probably billed, so do not
        retry.
        """
        if has_begun:
            return WorkerUnavailable(
                f"{self.worker} began to answer, but then sent no output within the time limit. Use a lower reasoning effort or another worker.",
                worker=self.worker,
                retryable=False,
                billed_at_bound=True,
                detail=self.quote(
                    f"Address: {self.address}. The call may have been billed. Raise first_token_timeout_s or stall_timeout_s if"
                    " the model needs more time to think."
                ),
            )
        return self.unavailable(
            f"{self.worker} sent no output within the time limit. Try again.",
            f"Address: {self.address}. Raise first_token_timeout_s or stall_timeout_s if the model needs more time to think.",
        )

    def garble_error(self) -> WorkerUnavailable:
        return self.unavailable(
            f"{self.worker} sent an answer that cannot be parsed. Try again.",
            f"The answer is not in the format of {self.provider}'s API. Check that {self.address} serves that API.",
        )

    def by_status(self, status: int, text: str, headers: Mapping[str, str], code: str = "") -> WorkerError:
        """Return the error for an HTTP status, or its equivalent in a stream. `code` is the provider's, or
        "".
        """
        error = self._of_status(status, text, headers, code)
        error.provider_status = status
        return error

    def _of_status(self, status: int, text: str, headers: Mapping[str, str], code: str) -> WorkerError:
        server = self.provider if self._is_providers_own else f"The server at {self.address}"
        reply = f"{server} returned {status}: {self.quote(text)}"
        if 300 <= status < 400:
            location = self.quote(headers.get("location", "an unknown address"))
            return self._config_error(
                f"{self.address} redirects to {location} (status {status}), but Podium does not follow redirects. "
                "Set base_url to the address of the API.",
                in_doubt=True,
            )
        wait_s, meaning = retry_after_s(headers), meaning_of(status, text, code)
        if status == 413 or meaning == "too long":
            message = f"The prompt and its answer exceed the context length of {self.worker}. Shorten the prompt, or request a shorter answer."
            return ContextOverflow(message, worker=self.worker, detail=reply)
        if status == 429 and _OUT_OF_MONEY.search(code):
            return self._config_error(f"The provider account is out of credit. Check its plan. {reply}")
        if status in (429, 529) or (status == 503 and wait_s is not None):
            return WorkerBusy(
                f"{self.worker} is busy. Try again later.",
                worker=self.worker,
                retry_after_s=wait_s,
                detail=f"If this happens often, lower the worker's max_concurrency. {reply}",
            )
        if status >= 500 or status in (408, 409, 425, 499):
            message = f"{self.worker} failed because of an error at its provider. Try again."
            return WorkerUnavailable(message, worker=self.worker, detail=reply)
        if meaning == "filtered":
            message = f"The content filter of {self.worker}'s provider blocked the prompt. Change the prompt."
            return ContentFiltered(message, worker=self.worker, detail=reply)
        advice = self._advice(status, meaning)
        if advice is not None:
            is_clear = status == 401 or meaning == "bad key" or is_certain(status, text, code)
            return self._config_error(f"{advice} {reply}", in_doubt=not is_clear)
        return WorkerRefused(
            f"{self.worker} rejected the request. Change the request, or use another worker.",
            worker=self.worker,
            detail=f"The cause may also be `model` ({self.model!r}) or `extra_body` in the worker's settings. {reply}",
        )

    def _config_error(self, detail: str, *, in_doubt: bool = False) -> WorkerRefused:
        """Return the error for a refusal that only the operator can fix.

        Every other call would be refused as well. With `in_doubt`, this is only probable.
        """
        return WorkerRefused(
            f"{self.worker} rejects every request because of its configuration or account. Contact the operator of this server.",
            worker=self.worker,
            every_call=True,
            in_doubt=in_doubt,
            detail=detail,
        )

    def _advice(self, status: int, meaning: Meaning | None) -> str | None:
        """Return advice for the operator if every call is refused, or None if only this call is refused."""
        if meaning == "this call":
            return None
        if status == 401 or meaning == "bad key":
            return f"Check the worker's API key (`api_key_env`, usually {self.key_env})."
        if status == 402:
            return "Check the plan and the credit of the provider account."
        if status == 403:
            return f"The worker's API key (`api_key_env`, usually {self.key_env}) has no access to the model {self.model!r}."
        if status == 404:
            return f"Check that {self.address} (`base_url`) serves the model {self.model!r} (`model`)."
        return None

    def of_wire(self, error: Exception) -> WorkerError | None:
        """Return the error for an exception by an HTTP library or a malformed chunk, or else None."""
        if isinstance(
            error, httpx2.ConnectTimeout
        ):  # aiohttp's transport raises it for every failure to connect
            return self.unreachable(error)
        if isinstance(error, (httpx2.TimeoutException, aiohttp.SocketTimeoutError)):
            return self.stall()
        if isinstance(error, (*WIRE_ERRORS, AddressForbidden)):
            return self.unreachable(error)
        return self.garble_error() if isinstance(error, GARBLED) else None

    @contextmanager
    def on_the_wire(self) -> Generator[None]:
        """Raise worker errors in place of the exceptions that `of_wire` maps."""
        try:
            yield
        except Exception as exc:
            if (mapped := self.of_wire(exc)) is not None:
                raise mapped from exc
            raise

    def in_stream(
        self, error: object, headers: Mapping[str, str] | None = None, code: str = ""
    ) -> WorkerError:
        """Return the worker error for an error inside the stream. `code` is one that the SDK read."""
        text = error_text(error)
        codes = f"{code} {error_code(error)}".strip()
        return self.by_status(status_in_stream(error, text), text, headers or {}, codes)

    @contextmanager
    def in_request(self) -> Generator[None]:
        """Raise a refusal in place of a `ValueError`, which says why the request cannot be built."""
        try:
            yield
        except ValueError as exc:
            raise self.refusal(f"{self.worker} was not called: {self.quote(str(exc))}.") from exc


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds after which to retry, or None if neither `retry-after-ms` nor Retry-After gives them.

    Retry-After is a number of seconds or a date.
    """
    for name, per_second in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        wait_s = _number(headers.get(name))
        if wait_s is not None:
            return max(0.0, wait_s / per_second)
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def error_text(body: object) -> str:
    if isinstance(body, str):
        return body
    message = _message_in(body)
    if message is None:
        return json.dumps(body, default=str)
    return f"{message}: {raw}" if (raw := _raw_in(body)) else message


def _raw_in(body: object) -> str:
    """Return the error that a router such as OpenRouter quotes from the provider behind it, or ""."""
    while isinstance(body, Mapping):
        fields = cast(Mapping[str, object], body)
        metadata = fields.get("metadata")
        if isinstance(metadata, Mapping) and (raw := cast(Mapping[str, object], metadata).get("raw")):
            return (raw if isinstance(raw, str) else json.dumps(raw, default=str))[:MAX_RAW_CHARS]
        body = fields.get("error")
    return ""


def _message_in(body: object) -> str | None:
    while isinstance(body, Mapping):
        inner: object = body.get("message") or body.get("error") or body.get("detail")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if inner is None:
            return None
        body = inner  # pyright: ignore[reportUnknownVariableType]
    return body if isinstance(body, str) else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
