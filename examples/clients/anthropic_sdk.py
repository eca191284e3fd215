"""A tool through Messages, streamed, with Anthropic's Python SDK."""

import os

from anthropic import Anthropic

client = Anthropic(base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000"), api_key="none")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}

messages = [{"role": "user", "content": "What is the weather in Rome?"}]
while True:
    with client.messages.stream(
        model="podium-mini",
        max_tokens=1000,
        messages=messages,
        tools=[{"name": "weather", "input_schema": SCHEMA}],
    ) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    calls = [block for block in answer.content if block.type == "tool_use"]
    if not calls:
        break
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": f"sunny in {call.input['city']}"}
        for call in calls
    ]
    messages.append({"role": "user", "content": results})
print()
