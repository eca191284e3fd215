"""A tool through Chat Completions and through Responses, with OpenAI's Python SDK."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
QUESTION = "What is the weather in Rome?"
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def weather(arguments: str) -> str:
    return f"sunny in {json.loads(arguments)['city']}"


messages = [{"role": "user", "content": QUESTION}]
while True:
    tools = [{"type": "function", "function": WEATHER}]
    answer = client.chat.completions.create(model="podium-mini", messages=messages, tools=tools)
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": weather(call.function.arguments)}
        for call in message.tool_calls
    ]
print("chat:", message.content)

results, before = [{"role": "user", "content": QUESTION}], None
while results:
    response = client.responses.create(
        model="podium-mini",
        input=results,
        previous_response_id=before,
        tools=[{"type": "function"} | WEATHER],
    )
    before = response.id
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": weather(item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]
print("responses:", response.output_text)
