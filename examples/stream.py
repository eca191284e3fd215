"""Watch a plan being written and run, then read the answer as it streams."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")

chunks = client.chat.completions.create(
    model="podium-ultra",
    messages=[{"role": "user", "content": "Should a small team write its own database?"}],
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"podium": {"progress": "events", "deadline_s": 120}},
)

usage, answer = None, ""
for chunk in chunks:
    event = chunk.model_extra.get("podium", {})
    if event.get("type") == "step_planned":
        task = event["subtask"] or "answer the question"
        print(f"[{event['at_s']:6.2f} s] planned step {event['step']}: {event['worker']}: {task}")
    elif event.get("type") in ("step_began", "step_ended", "step_lost") and not answer:
        print(f"[{event['at_s']:6.2f} s] {event['type'].replace('_', ' ')}: {event['step']}")
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
        answer += choice.delta.content or ""
    usage = chunk.usage or usage

print(f"\ntokens: {usage.total_tokens}")
