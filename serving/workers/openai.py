"""Worker for servers with OpenAI's Chat Completions API: OpenAI, or the server at `base_url`.

API: https://platform.openai.com/docs/api-reference/chat/streaming. Fields that other servers add
(`reasoning_content`, `reasoning`) are read if present. Request fields that only one kind of server accepts
(vLLM's `structured_outputs`, switches of a chat template) belong in `extra_body`, which is merged into every
request. This module does not guess which server is behind a `base_url`.

* The output limit is sent as `max_completion_tokens` to api.openai.com and to models that accept no other field, and as
  `max_tokens` to all others.
* Parameters that a model does not accept are removed earlier: `serving/dispatch/model_parameters.py`.
* A `base_url` with an `api-version` in its query is Azure's dated API, which takes the key as `api-key`. Azure's v1 API
  (`.../openai/v1/`) takes it like OpenAI
  (https://learn.microsoft.com/azure/foundry/openai/api-version-lifecycle). With `service: azure` the SDK's Azure client
  finds the deployment, and an account without a key gets tokens from Entra ID.

The SDK provides addresses, headers and the HTTP client. Calls bypass it and use the client's aiohttp session directly
(decisions 0010 and 0078).
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, cast

import aiohttp
import httpx2
import msgspec
import openai

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import File, Image, Message, Text
from conductor.model.operation import TOKENS_GONE, CallKind, read_tokens
from conductor.model.reply import Delta, Reply
from serving.egress.client import DirectPost, guard, tls_context
from serving.settings.known_models import OPENAI_MODEL
from serving.settings.model_access import USUAL_KEYS
from serving.workers.answer_stream import Provider
from serving.workers.cache_marks import cache_control, limit_marks
from serving.workers.chat_chunks import ChatChunk, ChunkReader, fields
from serving.workers.chat_tools import messages_json, tools_json
from serving.workers.clouds import azure_client, credential_errors, entra_tokens
from serving.workers.event_stream import without_framing
from serving.workers.http_errors import error_text
from serving.workers.http_guard import (
    AS_IT_IS,
    check_answer,
    end_with_connection,
    pieces_of,
    read_error,
    read_whole,
)
from serving.workers.openai_embeddings import embedding_delta, embedding_request, most_bytes
from serving.workers.openai_options import (
    THOUGHTS,
    ShowMark,
    cache_breakpoint,
    find_refused_hints,
    is_for_all,
    no_marks,
    options_json,
    part_json,
    response_format_of,
    without_hints,
)
from serving.workers.openai_stream import OpenAIAnswer
from serving.workers.output_limit import OutputMeter, open_metered
from serving.workers.provider_account import ProviderAccount
from serving.workers.stall_timer import StallTimer
from serving.workers.stream_errors import error_code
from serving.workers.usage import UsageCheck
from serving.workers.wire_tools import WireTools

CONNECTIONS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)


EMPTY = Text("")


class WireErrors:
    """Context manager without state that maps exceptions to worker errors, except those that map to None."""

    def __init__(self, map_error: Callable[[Exception], WorkerError | None]) -> None:
        self._map_error = map_error

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and (mapped := self._map_error(error)) is not None:
            raise mapped from error


class OpenAIWorker:
    """A model behind OpenAI's Chat Completions API."""

    summarizes_thoughts = False
    """See `Meter`."""

    def __init__(self, account: ProviderAccount) -> None:
        """Create the HTTP client, without connecting. `base_url` includes `/v1`, by default OPENAI_BASE_URL
        or OpenAI's.
        """
        self.name, self._account, self.origin = account.name, account, account.origin
        self._http: httpx2.AsyncClient = guard(
            openai.DefaultAioHttpClient(
                timeout=account.timeout, limits=CONNECTIONS, headers=AS_IT_IS, verify=tls_context()
            ),
            account.reach,
        )
        self._post = DirectPost(self._http, account.reach)
        self._tokens = entra_tokens(account)
        sdk = self._sdk()
        url = _base_url(account, sdk)
        self._endpoints = _endpoints_below(url)
        is_dated_azure = "api-version" in url.params
        key = {"api-key": account.api_key} if is_dated_azure and not self._tokens else sdk.auth_headers
        defaults = {**sdk.default_headers, **key}
        self._headers = AS_IT_IS | {name: value for name, value in defaults.items() if isinstance(value, str)}
        self._is_openai = url.host == "api.openai.com" or url.host.endswith(".api.openai.com")
        is_azure = account.access.service == "azure" or url.host.endswith(".openai.azure.com")
        self._sends_conversation = self._is_openai or is_azure
        self._faults = account.faults("OpenAI", USUAL_KEYS["openai"], url)
        self._wire_errors = WireErrors(self._map_error)
        self._provider = Provider(account, self.origin, self._faults, lambda: self._wire_errors)
        self._show_mark = _marks_of(account.public_name, url.host)
        self._refused_hints = frozenset(THOUGHTS if self._is_openai else ())
        """Hints (optional request fields, see `openai_options.py`) that the server has rejected. They are not
        sent again.
        """

    def _sdk(self) -> openai.AsyncOpenAI:
        account = self._account
        if account.access.service == "azure":
            return azure_client(account, self._http, self._tokens)
        return openai.AsyncOpenAI(
            api_key=account.api_key, base_url=account.base_url, max_retries=0, http_client=self._http
        )

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        account = self._account
        if call.site.operation == "embeddings":
            return open_reply(account.name, account.model, self._embedding(call), account.price)
        return open_metered(account, call, self._deltas, summarizes_thoughts=self.summarizes_thoughts)

    async def aclose(self) -> None:
        """Close all connections. The worker cannot be used afterwards."""
        await self._http.aclose()
        if self._tokens is not None:
            await self._tokens.aclose()

    def _deltas(self, call: Call, meter: OutputMeter) -> AsyncGenerator[Delta]:
        answer = OpenAIAnswer(call, meter, self._provider)
        return answer.deltas(self._endpoints[call.site.operation].host, self._arrivals(call, answer))

    async def _embedding(self, call: Call) -> AsyncGenerator[Delta]:
        """Request embeddings, and yield all vectors in one delta."""
        body = embedding_request(self._account.model, call) | dict(self._account.extra_body)
        check, timer = UsageCheck(call, self._account.price), self._account.timer(self._faults, call)
        answer = await timer.wait(self._vectors(body, most_bytes(call), timer))
        try:
            delta = embedding_delta(answer, call, check)
        except ValueError as exc:
            error = self._faults.garble_error()
            error.billed_at_bound = True  # the server has computed them
            raise error from exc
        yield delta

    async def _vectors(self, body: dict[str, Any], most: int, timer: StallTimer) -> object:
        """Send a request for embeddings and return the answer, which may have at most `most` bytes."""
        with self._wire_errors:
            async with self._response(self._endpoints["embeddings"], body) as response:
                timer.begin()
                return msgspec.json.decode(without_framing(await read_whole(response, most)))

    @asynccontextmanager
    async def _response(
        self, endpoint: httpx2.URL, body: dict[str, Any]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send `body` and open the response, again without the hints that the server rejects."""
        hints = for_all = self._refused_hints
        while True:
            reduced_body = without_hints(body, hints)
            response = await self._send(endpoint, reduced_body)
            try:
                check_answer(response)
                end_with_connection(response)
                if not 200 <= response.status < 300:
                    text = _text_of(response, await read_error(response))
                    more = find_refused_hints(reduced_body, response.status, text)
                    if not more:
                        raise self._failure(response, text) from aiohttp.ClientResponseError(
                            response.request_info, (), status=response.status
                        )
                    hints |= more
                    for_all |= {hint for hint in more if is_for_all(hint, text)}
                    continue
                self._refused_hints |= for_all
                yield response
                return
            finally:
                await response.__aexit__(None, None, None)

    async def _send(self, endpoint: httpx2.URL, body: dict[str, Any]) -> aiohttp.ClientResponse:
        headers = self._headers
        if self._tokens is not None:
            headers = {**headers, "Authorization": f"Bearer {await self._tokens()}"}
        return await self._post(endpoint, msgspec.json.encode(body), headers)

    async def _arrivals(self, call: Call, answer: OpenAIAnswer) -> AsyncGenerator[tuple[list[ChatChunk]]]:
        """Yield lists of chunks. Each list contains the chunks that one read from the network completed."""
        body, reader, timer = self._request(call), answer.chunks, answer.timer
        if self._show_mark is cache_control:
            answer.note_marks(body)
        with self._wire_errors:
            async with self._response(self._endpoints[call.site.operation], body) as response:
                timer.begin()
                async with aclosing(pieces_of(response)) as pieces:
                    async for piece in pieces:
                        chunks = reader.feed(piece)
                        timer.count(len(chunks))
                        if reader.is_done:  # nothing follows `[DONE]`, even if there was no finish reason
                            timer.hear(is_last=True, is_new=False)
                        yield (chunks,)
                        self._check(reader)
                yield (reader.end(),)
                self._check(reader)

    def _check(self, reader: ChunkReader) -> None:
        """Raise the error that the server sent in the stream, or the error of an event that cannot be parsed."""
        if reader.error:
            raise self._faults.in_stream(reader.error)
        if reader.fault:
            raise reader.fault

    def _request(self, call: Call) -> dict[str, Any]:
        messages = self.origin.messages(call, keep_foreign=True)
        tools = WireTools(call.tools, history=any(message.tool_calls for message in messages))
        usual = "max_completion_tokens" if self._is_openai else "max_tokens"
        longest = self._account.accepts.output_limit_field or usual
        is_text = call.site.operation == "text_completion"
        optional: dict[str, object] = {
            "max_tokens" if is_text else longest: call.sampling.max_output_tokens,
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
            "stop": list(call.sampling.stop) or None,
            "seed": call.sampling.seed,
            "reasoning_effort": None if is_text else call.sampling.effort,
            "response_format": response_format_of(call),
            **options_json(call, sends_conversation=self._sends_conversation),
            **tools_json(tools, takes_strict=self._is_openai, show_mark=self._show_mark),
        }
        request: dict[str, object] = {
            "model": self._account.model,
            **self._prompt_json(call, messages),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        request |= {key: value for key, value in optional.items() if value is not None}
        request |= dict(self._account.extra_body)
        if self._show_mark is cache_control:
            limit_marks(request)
        return request

    def _prompt_json(self, call: Call, messages: list[Message]) -> dict[str, object]:
        """Return the fields for the conversation, or for the text to complete."""
        if call.site.operation == "text_completion":
            return {"prompt": self._prompt("".join(message.text for message in call.messages), call)}
        lines = messages_json(messages, self._content, self._show_mark)
        if not call.prefix:
            return {"messages": lines}
        prefix = {"role": "assistant", "content": call.prefix}
        return {"messages": [*lines, prefix], "add_generation_prompt": False, "continue_final_message": True}

    def _prompt(self, text: str, call: Call) -> str | list[int]:
        if not call.sampling.options.token_prompt:
            return text
        try:
            return read_tokens(text)
        except ValueError as exc:
            raise self._faults.refusal(f"{self.name} was not called: {TOKENS_GONE}") from exc

    def _content(self, message: Message) -> object:
        """Return a message's content as plain text, which every server accepts, or as parts for pictures,
        files and cache marks.
        """
        parts = [part for part in message.parts if isinstance(part, Text | Image | File)]
        shows_more = message.role == "user" and (message.has_image or message.has_pdf)
        if not shows_more and not any(self._show_mark(part.cache) for part in parts):
            return message.text
        with self._faults.in_request():
            return [part_json(part, self._show_mark) for part in parts if part != EMPTY]

    def _map_error(self, error: Exception) -> WorkerError | None:
        """Return the worker error for an exception, or None if it is a worker error already or is not known."""
        if isinstance(error, WorkerError):
            return None
        if isinstance(error, msgspec.DecodeError):
            return self._faults.garble_error()
        mapped = self._faults.of_wire(error)
        return (
            self._faults.no_credentials()
            if mapped is None and isinstance(error, credential_errors())
            else mapped
        )

    def _failure(self, response: aiohttp.ClientResponse, text: str) -> WorkerError:
        try:
            content: Any = json.loads(text)
        except (ValueError, RecursionError):
            content = text.strip()
        body: object = content
        if isinstance(content, list) and content:  # from Gemini's OpenAI-compatible endpoint
            body = cast(list[object], content)[0]
        error = fields(body).get("error", body)
        return self._faults.by_status(response.status, error_text(error), response.headers, error_code(error))


def _text_of(response: aiohttp.ClientResponse, body: bytes) -> str:
    try:
        return body.decode(response.charset or "utf-8", "replace")
    except LookupError:  # unknown charset
        return body.decode("utf-8", "replace")


def _marks_of(model: str, host: str) -> ShowMark:
    """Return the function for cache marks in the format of the company that made the model."""
    if "claude" in model.lower() or host.endswith("openrouter.ai"):
        return cache_control
    is_openais = host.endswith((".openai.azure.com", "api.openai.com")) or OPENAI_MODEL.search(model)
    return cache_breakpoint if is_openais else no_marks


PATHS: dict[CallKind, str] = {
    "chat": "/chat/completions",
    "plan": "/chat/completions",
    "text_completion": "/completions",
    "embeddings": "/embeddings",
}


def _base_url(account: ProviderAccount, sdk: openai.AsyncOpenAI) -> httpx2.URL:
    """Return the base URL of the account's API, including `/v1` or its equivalent."""
    if account.access.service == "azure":
        return sdk.base_url.copy_with(params={"api-version": account.access.api_version})
    return httpx2.URL(account.base_url) if account.base_url else sdk.base_url


def _endpoints_below(url: httpx2.URL) -> dict[CallKind, httpx2.URL]:
    """Return the endpoints below `url`. Its query, such as Azure's `api-version`, is kept."""
    return {kind: url.copy_with(path=url.path.rstrip("/") + path) for kind, path in PATHS.items()}
