"""Worker for Google's Gemini API, with its official SDK.

API: https://ai.google.dev/api/generate-content#method:-models.streamgeneratecontent. Differences from OpenAI's API:

* The system prompt is `system_instruction`, and the assistant's role is `model`.
* Thoughts are parts marked `thought`, and their tokens are counted separately. `output_tokens` is the sum.
* For a blocked prompt, the API sends a reason and no candidate. It becomes an empty answer with the finish
  reason `content_filter`.

The SDK needs a custom HTTP client, because on its own it

* retries broken connections (with aiohttp) and resumes broken streams,
* has only one timeout for everything,
* leaves unread streams to the garbage collector.

The custom client sets the timeouts, and remembers each call's response so that the worker can close it.
"""

import base64
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, cast

import httpx2
from google import genai
from google.genai import errors, types

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.messages import File, Image, Text
from conductor.model.reply import Delta, Reply
from serving.egress.client import guard, tls_context
from serving.schemas.gemini import answer_schema
from serving.settings.model_access import USUAL_KEYS
from serving.workers.answer_stream import Provider
from serving.workers.clouds import credential_errors, google_credentials, vertex_address
from serving.workers.gemini_stream import GeminiAnswer, check_usage_counts
from serving.workers.gemini_tools import contents_json, tools_config
from serving.workers.http_errors import ErrorMapper
from serving.workers.http_guard import AS_IT_IS, bound_response
from serving.workers.output_limit import OutputMeter, open_metered
from serving.workers.picture_urls import media_type_of, split_data_url
from serving.workers.provider_account import ProviderAccount
from serving.workers.stall_timer import StallTimer
from serving.workers.wire_tools import WireTools

DEFAULT_BASE_URL = "https://generativelanguage.googleapis.com"
MAX_CONNECTIONS = 1000
"""Maximum number of connections. The other SDKs have the same limit."""

_responses: ContextVar[list[httpx2.Response] | None] = ContextVar("_responses", default=None)
"""List to which the HTTP client adds the response of the current call."""


class GeminiWorker:
    def __init__(self, account: ProviderAccount) -> None:
        """Create the clients of HTTP and SDK, without connecting. `base_url` is without the API's version."""
        self.name, self._account, self.origin = account.name, account, account.origin
        address = (account.base_url or vertex_address(account.access) or DEFAULT_BASE_URL).rstrip("/")
        self._host = httpx2.URL(address).host
        self._http = guard(
            httpx2.AsyncClient(
                headers=AS_IT_IS,
                verify=tls_context(),
                limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=100),
                event_hooks={
                    "request": [self._set_timeout],
                    "response": [_remember, bound_response, check_usage_counts],
                },
            ),
            account.reach,
        )
        options = types.HttpOptions(
            base_url=address, httpx_async_client=self._http, extra_body=dict(account.extra_body) or None
        )
        self._client = _client(account, options)
        self._faults = account.faults("Gemini", USUAL_KEYS["gemini"], httpx2.URL(address))
        self._provider = Provider(account, self.origin, self._faults, self._map_errors)

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_metered(self._account, call, self._deltas, summarizes_thoughts=True)

    async def aclose(self) -> None:
        """Close all connections. The worker cannot be used afterwards."""
        await self._http.aclose()
        self._client.close()

    async def _set_timeout(self, request: httpx2.Request) -> None:
        request.extensions["timeout"] = self._account.timeout.as_dict()

    def _deltas(self, call: Call, meter: OutputMeter) -> AsyncGenerator[Delta]:
        answer = GeminiAnswer(call, meter, self._provider)
        return answer.deltas(self._host, self._arrivals(call, answer.timer))

    async def _arrivals(
        self, call: Call, timer: StallTimer
    ) -> AsyncGenerator[tuple[types.GenerateContentResponse]]:
        """Yield the chunks of the answer. Reading the first one sends the request."""
        contents, config = self._request(call)
        responses: list[httpx2.Response] = []
        stream = await self._client.aio.models.generate_content_stream(
            model=self._account.model, contents=cast(Any, contents), config=config
        )
        chunks = cast(AsyncGenerator[types.GenerateContentResponse], stream)
        try:
            while True:
                before = _responses.set(responses)
                try:
                    with self._map_errors():
                        chunk = await anext(chunks, None)
                        timer.count(1)
                finally:
                    _responses.reset(before)
                    if any(response.is_success for response in responses):
                        timer.begin()
                if chunk is None:
                    return
                yield (chunk,)
        finally:
            for response in responses:
                await response.aclose()
            await chunks.aclose()

    def _request(self, call: Call) -> tuple[list[dict[str, object]], types.GenerateContentConfig]:
        messages = self.origin.messages(call)
        system = "\n\n".join(message.text for message in messages if message.role == "system")
        with self._faults.in_request():
            contents = contents_json(messages, _part)
        if not contents:  # the API requires at least one turn
            contents.append({"role": "user", "parts": [{"text": system}]})
            system = ""
        tools = WireTools(call.tools, history=_has_calls(contents))
        is_json, schema = answer_schema(call.answer_format, call.grammar)
        config = types.GenerateContentConfig(
            system_instruction=system or None,
            max_output_tokens=call.sampling.max_output_tokens,
            temperature=call.sampling.temperature,
            top_p=call.sampling.top_p,
            top_k=call.sampling.top_k or None,
            stop_sequences=list(call.sampling.stop) or None,
            seed=call.sampling.seed,
            response_mime_type="application/json" if is_json else None,
            response_json_schema=schema,
            thinking_config=thinking_for(self._account.public_name, call.sampling.effort),
            **tools_config(tools),
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            automatic_continuation=False,
        )
        return contents, config

    @contextmanager
    def _map_errors(self) -> Generator[None]:
        """Raise exceptions of the SDK as worker errors. The SDK raises a `ValueError` for a malformed chunk."""
        try:
            with self._faults.on_the_wire():
                yield
        except (errors.APIError, errors.ContinuationInterruptedError) as exc:
            raise fault(self._faults, exc) from exc
        except credential_errors() as exc:
            raise self._faults.no_credentials() from exc


def _client(account: ProviderAccount, options: types.HttpOptions) -> genai.Client:
    access = account.access
    if access.service != "vertex":
        return genai.Client(vertexai=False, api_key=account.api_key, http_options=options)
    return genai.Client(
        vertexai=True,
        project=access.project,
        location=access.region,
        credentials=google_credentials(access, account.name),
        http_options=options,
    )


def fault(faults: ErrorMapper, exc: errors.APIError | errors.ContinuationInterruptedError) -> WorkerError:
    """Return the worker error for an exception of the SDK. A test checks all its exception classes."""
    if isinstance(exc, errors.ContinuationInterruptedError):
        return faults.unavailable(
            f"{faults.worker} stopped in the middle of its answer, which could not be resumed. Try again."
        )
    response, details = (
        cast(object, getattr(exc, "response", None)),
        cast(object, getattr(exc, "details", None)),
    )
    raw_headers = cast(Mapping[str, str], getattr(response, "headers", None) or {})
    headers = {key.lower(): value for key, value in raw_headers.items()}
    delay_s = _in_details(details, "retryDelay")
    if delay_s is not None:
        headers.setdefault("retry-after", delay_s.removesuffix("s"))
    number = cast(object, exc.code)  # copied from the body, so it may be anything
    status = number if isinstance(number, int) else 500
    code = " ".join(filter(None, (_in_details(details, "reason"), str(exc.status or ""))))
    return faults.by_status(status, str(exc.message or exc.status), headers, code)


async def _remember(response: httpx2.Response) -> None:
    responses = _responses.get()
    if responses is not None:
        responses.append(response)


def _has_calls(contents: list[dict[str, object]]) -> bool:
    return any("function_call" in part for each in contents for part in cast(list[Any], each["parts"]))


def _part(part: Text | Image | File) -> dict[str, object]:
    if isinstance(part, Text):
        return {"text": part.text}
    if not part.url.startswith("data:"):
        return {"file_data": {"file_uri": part.url, "mime_type": media_type_of(part.url)}}
    media_type, data = split_data_url(part.url)
    return {"inline_data": {"mime_type": media_type, "data": base64.b64decode(data)}}


def _in_details(details: object, name: str) -> str | None:
    """Return a field in an error's details, such as `retryDelay` (`34.07s`) or `reason`, or None."""
    if not isinstance(details, Mapping):
        return None
    error: object = cast(Mapping[str, object], details).get("error")
    infos: object = cast(Mapping[str, object], error).get("details") if isinstance(error, Mapping) else None
    for info in cast(list[object], infos) if isinstance(infos, list) else []:
        value = cast(Mapping[str, object], info).get(name) if isinstance(info, Mapping) else None
        if isinstance(value, str):
            return value
    return None


BUDGET_TOKENS = {"low": 1024, "medium": 8192, "high": 24_576, "xhigh": 24_576, "max": 24_576}
PRO_BUDGET_TOKENS = {"none": 128, "minimal": 128, "xhigh": 32_768, "max": 32_768}
"""Budgets of Pro models that differ. They cannot stop thinking, and may think longer."""
LEVELS = {"none": "MINIMAL", "minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}
PRO_LEVELS = {"none": "LOW", "minimal": "LOW"}


def thinking_for(model: str, effort: str | None) -> types.ThinkingConfig | None:
    """Return the thinking configuration for a call of `model`, or None to send none.

    Models of generation 2.5 get a budget in tokens, and later models get a level. Older models get no
    parameters. Pro models cannot stop thinking, so they think as little as possible for `none` and `minimal`.

    See https://ai.google.dev/gemini-api/docs/thinking.
    """
    family = model.removeprefix("models/")
    if effort is None or not family.startswith("gemini-") or family.startswith(("gemini-1", "gemini-2.0")):
        return None
    is_pro, least = "pro" in family, effort in ("none", "minimal")
    if family.startswith("gemini-2"):
        budget = (PRO_BUDGET_TOKENS if is_pro else {}).get(effort, BUDGET_TOKENS.get(effort, 0))
        return types.ThinkingConfig(thinking_budget=budget, include_thoughts=None if least else True)
    level = (PRO_LEVELS if is_pro else {}).get(effort, LEVELS.get(effort, "HIGH"))
    return types.ThinkingConfig(
        thinking_level=types.ThinkingLevel(level), include_thoughts=None if least else True
    )
