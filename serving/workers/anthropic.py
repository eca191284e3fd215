"""Worker for Anthropic's Messages API, with its official SDK.

API: https://platform.claude.com/docs/en/api/messages-streaming. Differences from OpenAI's API:

* The system prompt is a field of its own. All system messages go there, in order.
* `max_tokens` is required: `DEFAULT_MAX_TOKENS` if a call sets none.
* `input_tokens` does not include tokens read from and written to the cache. Podium's count includes both.
* `effort` is sent as a thinking budget or as a level (`thinking_for`).
* `temperature`, `top_p` and `top_k` are no longer arguments of the SDK and are sent as extra fields. There is no `seed`.
  Parameters that a model does not accept are removed earlier: `serving/dispatch/model_parameters.py`.
* Prompts are cached only up to a mark (`cache_control`). Podium sets marks in requests without any, if they are long
  enough and the conversation probably goes on (`add_marks`).
* JSON schemas go through the SDK's `transform_schema`, which moves keywords that the API rejects (`maxItems`) into the
  description.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, cast

import anthropic
import httpx2
from anthropic.lib.bedrock import AsyncAnthropicBedrock
from anthropic.lib.vertex import AsyncAnthropicVertex
from anthropic.types import RawMessageStreamEvent

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.messages import File, Image, Message
from conductor.model.operation import PromptCache
from conductor.model.reply import Delta, Reply
from serving.egress.client import guard, tls_context
from serving.schemas.anthropic import output_format
from serving.settings.model_access import USUAL_KEYS
from serving.workers.answer_stream import Provider
from serving.workers.anthropic_stream import AnthropicAnswer, events_in
from serving.workers.anthropic_tools import add_marks, add_plan_marks, system_json, tools_json, turns_json
from serving.workers.cache_marks import cache_control, is_long_enough, limit_marks
from serving.workers.chat_chunks import fields
from serving.workers.clouds import credential_errors, garble_errors, google_credentials
from serving.workers.event_stream import WholeEvents
from serving.workers.http_errors import ErrorMapper, error_text
from serving.workers.http_guard import AS_IT_IS, bound_response
from serving.workers.output_limit import OutputMeter, open_metered
from serving.workers.picture_urls import split_data_url
from serving.workers.provider_account import NO_KEY, ProviderAccount
from serving.workers.wire_tools import WireTools

DEFAULT_MAX_TOKENS = 4096
VOLATILE = "x-anthropic-"
WITHOUT_HOUR = re.compile(r"claude-(3-|(opus|sonnet)-4(-[01])?(-\d{8}|$))")
"""Models for which Bedrock rejects a lifetime of one hour: those before 4.5
(https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html,
https://github.com/earendil-works/pi/pull/1570).
"""
NO_WORDS = "(no text)"
"""Text that is sent instead of a blank user turn, which the API rejects."""
MOST_VALUES = 1000
"""Maximum number of JSON values in an event. Events that are long have one long string and not many values.
"""


class AnthropicWorker:
    def __init__(self, account: ProviderAccount) -> None:
        """Create the SDK's client, without connecting. `base_url` is without `/v1`, by default
        ANTHROPIC_BASE_URL or Anthropic's.
        """
        self.name, self._account, self.origin = account.name, account, account.origin
        self._client = _client(account)
        self._faults = account.faults("Anthropic", USUAL_KEYS["anthropic"], self._client.base_url)
        self._provider = Provider(account, self.origin, self._faults, self._map_errors)

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_metered(self._account, call, self._deltas, summarizes_thoughts=True)

    async def aclose(self) -> None:
        """Close all connections. The worker cannot be used afterwards."""
        await self._client.close()

    def _deltas(self, call: Call, meter: OutputMeter) -> AsyncGenerator[Delta]:
        answer = AnthropicAnswer(call, meter, self._provider)
        return answer.deltas(self._client.base_url.host, self._events(call, answer))

    async def _events(
        self, call: Call, answer: AnthropicAnswer
    ) -> AsyncGenerator[tuple[RawMessageStreamEvent]]:
        request, timer = self._request(call), answer.timer
        answer.note_marks(request)
        with self._map_errors():
            stream = cast(
                anthropic.AsyncStream[RawMessageStreamEvent], await self._client.messages.create(**request)
            )
            timer.begin()
            try:
                async for event in cast(AsyncIterator[RawMessageStreamEvent], stream):
                    timer.count(1)
                    yield (event,)
            finally:
                await stream.close()

    def _request(self, call: Call) -> dict[str, Any]:
        max_tokens = call.sampling.max_output_tokens or DEFAULT_MAX_TOKENS
        thinking, effort = thinking_for(self._account.public_name, call.sampling.effort, max_tokens)
        if call.tools and call.tools.choice.mode == "required":
            thinking = None  # the API cannot force a tool call together with thinking
        thinks = thinking is not None and thinking["type"] != "disabled"
        messages = self._messages(call, thinks=thinks)
        system = system_json(messages)
        with self._faults.in_request():
            turns = turns_json(messages, _block)
        tools = WireTools(call.tools, history=_has_calls(turns))
        if not turns and system:  # the API requires at least one turn
            content = [{"type": "text", "text": system}] if isinstance(system, str) else system
            turns.append({"role": "user", "content": content})
            system = ""
        if not turns or (turns[-1]["role"] == "assistant" and messages[-1].role in ("user", "tool")):
            turns.append({"role": "user", "content": [{"type": "text", "text": NO_WORDS}]})
        if call.prefix:
            turns.append({"role": "assistant", "content": [{"type": "text", "text": call.prefix}]})
        output = {"effort": effort, "format": _format(call)}
        extra = {
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
            "top_k": call.sampling.top_k or None,
        }
        optional: dict[str, object] = {
            "system": system,
            "stop_sequences": list(call.sampling.stop),
            "thinking": thinking,
            **tools_json(tools),
            "output_config": {key: value for key, value in output.items() if value is not None},
            "extra_body": {key: value for key, value in extra.items() if value is not None}
            | dict(self._account.extra_body),
        }
        request = {"model": self._account.model, "max_tokens": max_tokens, "messages": turns, "stream": True}
        request |= {key: value for key, value in optional.items() if value}
        self._set_marks(request, call)
        return request

    def _set_marks(self, request: dict[str, Any], call: Call) -> None:
        """Set cache marks if the prompt is probably sent again and long enough for the API's cache.

        Only Claude models get them. The rules of servers with other models are not known.
        """
        account, cache = self._account, call.sampling.options.prompt_cache or PromptCache()
        is_plan, model = call.site.operation == "plan", account.public_name.lower()
        goes_on = bool(cache.conversation) and call.terms.priority == "interactive"
        is_reused = (is_plan or goes_on) and is_long_enough(call, model)
        if account.sets_breakpoints and is_reused and "claude" in model:
            has_hour = account.access.service != "bedrock" or not WITHOUT_HOUR.search(model)
            mark = cache_control("1h" if has_hour and cache.lifetime == "1h" else "ephemeral")
            if is_plan:
                add_plan_marks(request, mark, goes_on=goes_on)
            else:
                add_marks(request, mark)
        limit_marks(request)

    def _messages(self, call: Call, *, thinks: bool) -> list[Message]:
        """Return the conversation in a form that the API accepts.

        The API rejects tool calls of other models while the model thinks, because they come without thoughts.
        It also rejects all tool calls in a request without tools. Claude Code's volatile line (a line that
        changes with each request) is sent only to Anthropic's own API, which reads it only at the start of
        the prompt.
        """
        is_own = self._account.access.service is None and "claude" in self._account.public_name.lower()
        head = next((message.text for message in call.messages if message.role == "system"), "")
        return self.origin.messages(
            call,
            keep_foreign=not thinks and bool(call.tools.tools),
            keep_volatile=is_own and head.lower().startswith(VOLATILE),
        )

    @contextmanager
    def _map_errors(self) -> Generator[None]:
        try:
            with self._faults.on_the_wire():
                yield
        except anthropic.AnthropicError as exc:
            raise fault(self._faults, exc) from exc
        except credential_errors() as exc:
            raise self._faults.no_credentials() from exc
        except garble_errors() as exc:
            raise self._faults.garble_error() from exc


Client = anthropic.AsyncAnthropic | AsyncAnthropicBedrock | AsyncAnthropicVertex


def _client(account: ProviderAccount) -> Client:
    """Return the SDK's client for Anthropic or the account's cloud."""
    access = account.access
    hooks = [bound_response] if access.service == "bedrock" else [bound_response, _pass_whole_events]
    http = guard(
        anthropic.DefaultAsyncHttpxClient(
            timeout=account.timeout, headers=AS_IT_IS, verify=tls_context(), event_hooks={"response": hooks}
        ),
        account.reach,
    )  # AWS sends frames instead of events, and its library limits them
    # The SDK would add a second span around the call.
    shared: dict[str, Any] = {
        "base_url": account.base_url,
        "max_retries": 0,
        "http_client": http,
        "open_telemetry": False,
    }
    match access.service:
        case "bedrock":
            key = None if account.api_key == NO_KEY else account.api_key
            return AsyncAnthropicBedrock(
                api_key=key, aws_region=access.region, aws_profile=access.profile, **shared
            )
        case "vertex":
            return AsyncAnthropicVertex(
                region=access.region or "",
                project_id=access.project or "",
                credentials=google_credentials(access, account.name),
                **shared,
            )
        case _:
            return anthropic.AsyncAnthropic(api_key=account.api_key, **shared)


async def _pass_whole_events(response: httpx2.Response) -> None:
    """Response hook: make a successful response yield only complete events, whatever its content type."""
    if response.is_success and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = WholeEvents(response.stream, MOST_VALUES, events_in)


def fault(faults: ErrorMapper, exc: anthropic.AnthropicError) -> WorkerError:
    """Return the worker error for an exception of the SDK. A test checks all its exception classes."""
    match exc:
        case anthropic.APIStatusError():
            headers, code = exc.response.headers, f"{exc.error_code or ''} {exc.type or ''}"
            if exc.status_code < 300:  # in the stream
                return faults.in_stream(fields(exc.body).get("error") or exc.body, headers, code)
            return faults.by_status(exc.status_code, error_text(exc.body), headers, code)
        case anthropic.APIResponseValidationError() | anthropic.APIWebhookValidationError():
            return faults.garble_error()
        case anthropic.APITimeoutError():
            return faults.stall()
        case anthropic.APIConnectionError() | anthropic.RetryableError():
            return faults.unreachable(exc)
        case anthropic.APIError():
            return faults.unavailable(f"{faults.worker} failed. Try again.", f"SDK error: {exc.message}")
        case _:  # missing credentials, or arguments that the SDK does not accept
            return faults.refusal(
                f"{faults.worker} cannot be called. Use another worker.", f"SDK error: {exc}"
            )


def _has_calls(turns: list[dict[str, object]]) -> bool:
    return any(block["type"] == "tool_use" for turn in turns for block in cast(list[Any], turn["content"]))


def _block(part: Image | File) -> dict[str, object]:
    if not part.url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    media_type, data = split_data_url(part.url)
    source = {"type": "base64", "media_type": media_type, "data": data}
    if isinstance(part, File):
        return {"type": "document", "title": part.name, "source": source}
    return {"type": "image", "source": source}


def _format(call: Call) -> dict[str, object] | None:
    if call.answer_format is not None:
        return output_format(call.answer_format)
    if call.grammar is None or call.grammar.json_schema is None:
        return None
    return {"type": "json_schema", "schema": anthropic.transform_schema(call.grammar.json_schema)}


LEAST_BUDGET_TOKENS = 1024
"""Smallest thinking budget that the API accepts."""
BUDGET_TOKENS = {"low": 1024, "medium": 4096, "high": 16_384, "xhigh": 32_768, "max": 32_768}
CANNOT_THINK = re.compile(r"claude-(instant|2|3-(5|opus|sonnet|haiku))")
THINKS_BY_BUDGET = re.compile(r"claude-(3-7|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8}|-latest)?$)")


def thinking_for(
    model: str, effort: str | None, max_tokens: int
) -> tuple[dict[str, object] | None, str | None]:
    """Return the request fields `thinking` and `effort` for a call of `model`. A field that is None is not
    sent.

    - Models up to generation 4.5 get a thinking budget in tokens. Later ones get adaptive thinking and an
      `effort`.
    - Models before 3.7 cannot think and get no parameters.
    - `none` and `minimal` turn thinking off.
    - The budget is at most half of `max_tokens`, because thoughts count against it. If that is less than the
      minimum, the model does not think.

    See https://platform.claude.com/docs/en/build-with-claude/extended-thinking.
    """
    if effort is None or CANNOT_THINK.search(model):
        return None, None
    if THINKS_BY_BUDGET.search(model):
        budget = min(BUDGET_TOKENS.get(effort, 0), max_tokens // 2)
        return ({"type": "enabled", "budget_tokens": budget} if budget >= LEAST_BUDGET_TOKENS else None), None
    if effort in ("none", "minimal"):
        return {"type": "disabled"}, "low"
    return {"type": "adaptive", "display": "summarized"}, effort
