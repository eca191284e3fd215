"""The official Python SDKs as clients of the table: each sends an ask as its users would, and reports what it saw."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai

from tests.serving.api.served import Json

NextUrl = Callable[[], Awaitable[str]]
"""Called before each request after the first; returns the URL to use."""
Client = Callable[[str, Json, NextUrl, str], Awaitable[Json]]
CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
"""Schema with a bounded string, so that a small constrained model stops."""


def result(name: str, arguments: Any) -> str:
    return f"{name} of {arguments['city']}"


class ClientOutput:
    """Text and tool calls that a client saw, turn by turn."""

    def __init__(self) -> None:
        self.text, self.turns = "", list[list[str]]()

    def report(self, status: int = 0) -> Json:
        return {"text": self.text, "turns": self.turns, "status": status}


def options(ask: Json, turn: int, most: str, forced: Any) -> Json:
    """Return the request's options. `most`: name of the token limit. `forced`: value of `tool_choice` that forces a
    call.
    """
    bound = {most: ask["most"]} if "most" in ask else {}
    return bound | ({"tool_choice": forced} if turn < ask.get("must_call", 0) else {})


async def chat(url: str, ask: Json, next_url: NextUrl, key: str = "none") -> Json:
    """Use Chat Completions through `openai`."""
    output, content = ClientOutput(), ask["text"]
    if "image" in ask:
        picture = {"url": f"data:image/png;base64,{ask['image']}"}
        content = [{"type": "text", "text": content}, {"type": "image_url", "image_url": picture}]
    body: Json = {"model": ask["model"], "messages": [{"role": "user", "content": content}]}
    if ask["tools"]:
        body["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ask["tools"]
        ]
    if "schema" in ask:
        form = {"name": "it", "strict": True, "schema": ask["schema"]}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    try:
        while True:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                more = options(ask, len(output.turns), "max_completion_tokens", "required")
                reply = await _chat_turn(client, body | more, ask)
            if isinstance(reply, str):
                output.text = reply
                return output.report()
            if not reply.tool_calls:
                output.text = reply.content or ""
                return output.report()
            output.turns.append([call.function.name for call in reply.tool_calls])
            body["messages"].append(reply.model_dump(exclude_none=True, exclude={"parsed"}))
            body["messages"] += [
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "content": result(call.function.name, json.loads(call.function.arguments)),
                }
                for call in reversed(reply.tool_calls)
            ]
            url = await next_url()
    except openai.APIStatusError as error:
        return output.report(error.status_code)


async def _chat_turn(client: openai.AsyncOpenAI, body: Json, ask: Json) -> Any:
    if ask.get("leave"):
        async with await client.chat.completions.create(**body, stream=True) as chunks:
            async for chunk in chunks:
                if chunk.choices and chunk.choices[0].delta.content:
                    return chunk.choices[0].delta.content.split()[0]
    if ask["stream"]:
        async with client.chat.completions.stream(**body) as stream:
            message: Any = (await stream.get_final_completion()).choices[0].message
        for call in (
            message.tool_calls or ()
        ):  # The helper adds parsed arguments, which a request does not accept.
            call.function = type(call.function).model_construct(
                name=call.function.name, arguments=call.function.arguments
            )
        return message
    return (await client.chat.completions.create(**body)).choices[0].message


async def responses(url: str, ask: Json, next_url: NextUrl, key: str = "none") -> Json:
    """Use Responses through `openai`, with the whole history in each request."""
    output, content = ClientOutput(), ask["text"]
    if "image" in ask:
        picture = f"data:image/png;base64,{ask['image']}"
        content = [{"type": "input_text", "text": content}, {"type": "input_image", "image_url": picture}]
    history: list[Any] = [{"role": "user", "content": content}]
    body: Json = {"model": ask["model"], "input": history, "store": False}
    if ask["tools"]:
        body["tools"] = [{"type": "function", "name": name, "parameters": CITY} for name in ask["tools"]]
    if "schema" in ask:
        body["text"] = {
            "format": {"type": "json_schema", "name": "it", "strict": True, "schema": ask["schema"]}
        }
    try:
        while True:
            async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                more = options(ask, len(output.turns), "max_output_tokens", "required")
                reply = await _responses_turn(client, body | more, ask)
            if isinstance(reply, str):
                output.text = reply
                return output.report()
            calls = [item for item in reply.output if item.type == "function_call"]
            if not calls:
                output.text = reply.output_text
                return output.report()
            output.turns.append([call.name for call in calls])
            history += [item.model_dump(exclude={"parsed_arguments"}) for item in reply.output]
            history += [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": result(call.name, json.loads(call.arguments)),
                }
                for call in reversed(calls)
            ]
            url = await next_url()
    except openai.APIStatusError as error:
        return output.report(error.status_code)


async def _responses_turn(client: openai.AsyncOpenAI, body: Json, ask: Json) -> Any:
    if ask.get("leave"):
        async with await client.responses.create(**body, stream=True) as events:
            async for event in events:
                if event.type == "response.output_text.delta":
                    return event.delta.split()[0]
    if ask["stream"]:
        async with client.responses.stream(**body) as stream:
            return await stream.get_final_response()
    return await client.responses.create(**body)


async def messages(url: str, ask: Json, next_url: NextUrl, key: str = "none") -> Json:
    """Use Messages through `anthropic`."""
    output, content = ClientOutput(), [{"type": "text", "text": ask["text"]}]
    if "image" in ask:
        source = {"type": "base64", "media_type": "image/png", "data": ask["image"]}
        content.append({"type": "image", "source": source})
    body: Json = {
        "model": ask["model"],
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": content}],
    }
    if ask["tools"]:
        body["tools"] = [{"name": name, "input_schema": CITY} for name in ask["tools"]]
    if "schema" in ask:
        body["output_config"] = {"format": {"type": "json_schema", "schema": ask["schema"]}}
    try:
        while True:
            async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
                more = options(ask, len(output.turns), "max_tokens", {"type": "any"})
                reply = await _messages_turn(client, body | more, ask)
            if isinstance(reply, str):
                output.text = reply
                return output.report()
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                output.text = "".join(block.text for block in reply.content if block.type == "text")
                return output.report()
            output.turns.append([call.name for call in calls])
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": result(call.name, call.input),
                }
                for call in reversed(calls)
            ]
            body["messages"] += [
                {"role": "assistant", "content": reply.content},
                {"role": "user", "content": results},
            ]
            url = await next_url()
    except anthropic.APIStatusError as error:
        return output.report(error.status_code)


async def _messages_turn(client: anthropic.AsyncAnthropic, body: Json, ask: Json) -> Any:
    if ask.get("leave"):
        async with client.messages.stream(**body) as stream:
            async for text in stream.text_stream:
                return text.split()[0]
    if ask["stream"]:
        async with client.messages.stream(**body) as stream:
            return await stream.get_final_message()
    return await client.messages.create(**body)


CLIENTS: dict[str, Client] = {"chat": chat, "responses": responses, "messages": messages}
