"""What a provider's failure means to us, for the workers that speak HTTP.

One table from HTTP statuses to `WorkerError`s (what words beside them mean is in `status_words.py`), one
list of what the HTTP library raises past the SDKs, one way to read Retry-After, and one place that keeps
keys out of errors. It knows no SDK: each adapter sorts its own SDK's exceptions and comes here with a
status and what the provider said.

An error's message is for the caller: which worker, and what the caller can do. What the provider said,
where it was called and what the settings have to do with it is its `detail`, for the operator.
"""

import json
import math
import re
import time
from collections.abc import Callable, Generator, Mapping
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
from serving.workers.http_guard import BodyRefused
from serving.workers.status_words import Meaning, is_certain, meaning_of

PROVIDERS_HOSTS = ("openai.com", "anthropic.com", "googleapis.com")
"""Of the providers themselves; errors name any other server by its address."""
MAX_QUOTE_CHARS = 300
"""How much of what a provider said goes into an error's detail."""
MAX_READ_CHARS = 20_000
"""How much of it is read for that. What an error inside a stream says may be 16 MiB long."""
MAX_RAW_CHARS = 4000
"""How much of an error is read that a router quotes of the provider behind it."""
WIRE_ERRORS = (
    aiohttp.ClientError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    anyio.EndOfStream,
    OSError,
    RuntimeError,
)
"""What the HTTP libraries under the SDKs raise where an SDK lets it through, TLS's errors (`OSError`s)
among them; a `RuntimeError` where a client was closed, or was given what is no HTTP (`httpx2.StreamError`).
"""
GARBLED = (ValueError, TypeError, AttributeError, KeyError)
"""What the SDKs' lenient decoders raise, at once or when a field is read, where a chunk is not what it
should be: `json.JSONDecodeError`, `UnicodeDecodeError` and pydantic's `ValidationError` are `ValueError`s.
"""

_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:sk|pk|gsk|xai|key)-[\w*.-]{6,}|\bAIza[\w*-]{6,}|(?<=Bearer )\S+")
_OUT_OF_MONEY = re.compile(r"insufficient_quota|billing|spend_limit")


@dataclass(frozen=True, slots=True)
class ErrorMapper:
    """Makes the errors of one worker: knows whom to name, and what must not be said."""

    worker: str
    model: str
    provider: str
    """Who is at the other end, such as `OpenAI`."""
    key_env: str
    """Where the key mostly comes from, such as `OPENAI_API_KEY`."""
    address: str
    """Scheme and host that are called."""
    secret: str = field(repr=False)

    def quote(self, text: str) -> str:
        """What the provider said: on one line, shortened, and with nothing in it that is or looks like a
        key.
        """
        line = " ".join(whole(text[:MAX_READ_CHARS]).split())
        if self.secret:
            line = line.replace(self.secret, "***")
        line = _LOOKS_LIKE_A_KEY.sub("***", line)
        return line if len(line) <= MAX_QUOTE_CHARS else line[:MAX_QUOTE_CHARS] + " ..."

    @property
    def _is_providers_own(self) -> bool:
        """Whether the provider itself is called, not another server that speaks its API."""
        host = urlsplit(self.address).hostname or ""
        return any(host == own or host.endswith(f".{own}") for own in PROVIDERS_HOSTS)

    def unavailable(self, what: str, detail: str = "") -> WorkerUnavailable:
        """The call got nowhere or broke: `what` completes the sentence that starts with the worker's name."""
        return WorkerUnavailable(
            f"{self.worker} {self.quote(what)}", worker=self.worker, detail=self.quote(detail)
        )

    def odd_end(self, reason: object, usage: Usage | None) -> WorkerUnavailable:
        """The model stopped for a reason that the wire does not have. It was at work: its provider is paid what its
        server counted (`usage`), or nobody knows what.
        """
        error = self.unavailable("stopped before its answer's end. Try again.", f"Its reason: {reason!r}.")
        error.billed_at_bound = usage is None
        return error

    def refusal(self, what: str, detail: str = "", *, every_call: bool = False) -> WorkerRefused:
        """The same call would be refused again; `what` as above."""
        return WorkerRefused(
            f"{self.worker} {self.quote(what)}",
            worker=self.worker,
            detail=self.quote(detail),
            every_call=every_call,
        )

    def unreachable(self, cause: BaseException | None = None) -> WorkerError:
        """No connection, or it broke; or, where that is the `cause`, none was made to a forbidden address, or the
        body was not read to its end.
        """
        while cause is not None and not isinstance(cause, AddressForbidden | BodyRefused):
            cause = cause.__cause__
        if isinstance(cause, BodyRefused):
            return self.unavailable(f"{cause} Try again.", f"It was called at {self.address}.")
        if cause is not None:
            return self._config_error(
                f"{cause}, which is not connected to. If its base_url is meant to lead there, set `allow_link_local: true`."
            )
        return self.unavailable(
            "cannot be reached, or the connection broke. Try again.",
            f"It was called at {self.address}: is it up, is base_url right?",
        )

    def no_credentials(self) -> WorkerRefused:
        """Its cloud gives no credentials, or takes none that are there. Its library's words may quote secrets."""
        return self._config_error(
            f"Its cloud's library found no credentials for {self.address}, or they were not taken (settings: service)."
        )

    def stall(self, has_begun: bool = False) -> WorkerUnavailable:
        """Connected, or not even that, and then nothing came for too long.

        Where the server `has_begun` to answer, the model was at work and is probably paid: the same call is
        not made again.
        """
        if has_begun:
            return WorkerUnavailable(
                f"{self.worker} began to answer and then said nothing for too long. Ask for less effort, or another worker.",
                worker=self.worker,
                retryable=False,
                billed_at_bound=True,
                detail=self.quote(
                    f"It was called at {self.address}, and may have been paid. Raise first_token_timeout_s or stall_timeout_s if it thinks this long."
                ),
            )
        return self.unavailable(
            "said nothing for too long. Try again.",
            f"It was called at {self.address}. Raise first_token_timeout_s or stall_timeout_s if it thinks this long.",
        )

    def garble_error(self) -> WorkerUnavailable:
        """What came is not the wire's language."""
        return self.unavailable(
            "sent an answer that cannot be read. Try again.",
            f"It is no {self.provider} stream: does {self.address} speak that API?",
        )

    def by_status(self, status: int, text: str, headers: Mapping[str, str], code: str = "") -> WorkerError:
        """The error for an HTTP status, or for an error inside a stream that stands for one.

        Args:
            status: as on the wire.
            text: the provider's own words.
            headers: of the response, for Retry-After.
            code: the provider's machine-readable code or type, where it gives one.
        """
        error = self._of_status(status, text, headers, code)
        error.provider_status = status
        return error

    def _of_status(self, status: int, text: str, headers: Mapping[str, str], code: str) -> WorkerError:
        who = self.provider if self._is_providers_own else f"The server at {self.address}"
        said = f"{who} said {status}: {self.quote(text)}"
        if 300 <= status < 400:
            where = self.quote(headers.get("location", "nowhere"))
            return self._config_error(
                f"{self.address} sends its callers elsewhere ({status}, to {where}), and a prompt and a key are not sent after"
                " it: set base_url to where the API is.",
                in_doubt=True,
            )
        wait_s, meaning = retry_after_s(headers), meaning_of(status, text, code)
        if status == 413 or meaning == "too long":
            message = f"{self.worker} cannot hold this prompt and its answer: shorten them."
            return ContextOverflow(message, worker=self.worker, detail=said)
        if status == 429 and _OUT_OF_MONEY.search(code):
            return self._config_error(f"It is out of credit: check the account's plan. {said}")
        if status in (429, 529) or (status == 503 and wait_s is not None):
            return WorkerBusy(
                f"{self.worker} is busy. Try again later.",
                worker=self.worker,
                retry_after_s=wait_s,
                detail=f"Lower its max_concurrency where this is often so. {said}",
            )
        if status >= 500 or status in (408, 409, 425, 499):
            message = f"{self.worker} failed on its provider's side. Try again."
            return WorkerUnavailable(message, worker=self.worker, detail=said)
        if meaning == "filtered":
            message = f"{self.worker}'s provider has a content filter that stopped this prompt: change it."
            return ContentFiltered(message, worker=self.worker, detail=said)
        advice = self._advice(status, meaning)
        if advice is not None:
            is_clear = status == 401 or meaning == "bad key" or is_certain(status, text, code)
            return self._config_error(f"{advice} {said}", in_doubt=not is_clear)
        return WorkerRefused(
            f"{self.worker} refused the call: change what is asked, or ask another worker.",
            worker=self.worker,
            detail=f"It may also be a matter of its settings, of {self.model!r} or of extra_body. {said}",
        )

    def _config_error(self, detail: str, *, in_doubt: bool = False) -> WorkerRefused:
        """The caller can do nothing about it, and any other call would end the same; probably, where that is `in_doubt`."""
        return WorkerRefused(
            f"{self.worker} refuses every call for a reason that the operator of this server has to look into.",
            worker=self.worker,
            every_call=True,
            in_doubt=in_doubt,
            detail=detail,
        )

    def _advice(self, status: int, meaning: Meaning | None) -> str | None:
        """What the operator can do where every call would be refused; None where it is this call."""
        if meaning == "this call":
            return None
        if status == 401 or meaning == "bad key":
            return f"Check its key (settings: api_key_env, mostly {self.key_env})."
        if status == 402:
            return "Check the account's plan and credit."
        if status == 403:
            return f"Its key (settings: api_key_env, mostly {self.key_env}) may not use {self.model!r}."
        if status == 404:
            return f"Does {self.address} have a model {self.model!r}? (settings: model, base_url)"
        return None

    def of_wire(self, error: Exception) -> WorkerError | None:
        """Return what stands for an error that is left once an SDK's own are sorted out: the HTTP library's, and garbled
        chunks'; None if it is neither.
        """
        if isinstance(
            error, httpx2.ConnectTimeout
        ):  # what aiohttp's transport makes of every failure to connect
            return self.unreachable(error)
        if isinstance(error, (httpx2.TimeoutException, aiohttp.SocketTimeoutError)):
            return self.stall()
        if isinstance(error, (*WIRE_ERRORS, AddressForbidden)):
            return self.unreachable(error)
        return self.garble_error() if isinstance(error, GARBLED) else None

    @contextmanager
    def on_the_wire(self) -> Generator[None]:
        """Map the errors of `of_wire`."""
        try:
            yield
        except Exception as exc:
            if (mapped := self.of_wire(exc)) is not None:
                raise mapped from exc
            raise


class WireErrors:
    """A block in which errors of a wire become ours; one for all calls of a worker, and without a state.

    Args:
        map_error: returns what stands for an error; None if that is ours already.
    """

    def __init__(self, map_error: Callable[[Exception], WorkerError | None]) -> None:
        self._map_error = map_error

    def __enter__(self) -> None:
        """Nothing is to be done before."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Raise what stands for the error."""
        if isinstance(error, Exception) and (mapped := self._map_error(error)) is not None:
            raise mapped from error


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """How long a response asks us to wait: `retry-after-ms`, or Retry-After as seconds or as a date (RFC
    9110, 10.2.3).

    None where it does not say, or says what is no time.
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
    """The words of an error body, whatever its shape."""
    if isinstance(body, str):
        return body
    found = _message_in(body)
    if found is None:
        return json.dumps(body, default=str)
    return f"{found}: {raw}" if (raw := _raw_in(body)) else found


def _raw_in(body: object) -> str:
    """Return what a router such as OpenRouter quotes of the provider behind it; "" if it quotes nothing."""
    while isinstance(body, Mapping):
        fields = cast(Mapping[str, object], body)
        about = fields.get("metadata")
        if isinstance(about, Mapping) and (raw := cast(Mapping[str, object], about).get("raw")):
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
