"""Run your own plan: two workers in parallel, and a third step that reads both."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")
first, second = [m.id for m in client.models.list() if m.model_extra["podium"].get("in_pool")][:2]

plan = [
    {"worker": first, "subtask": "Give one argument for tabs.", "access": []},
    {"worker": second, "subtask": "Give one argument for spaces.", "access": []},
    {"worker": first, "subtask": "Weigh the arguments and decide.", "access": [0, 1]},
]

answer = client.chat.completions.create(
    model="podium-mini",
    messages=[{"role": "user", "content": "Tabs or spaces?"}],
    extra_body={"podium": {"plan": plan, "trace": True}},
)

podium = answer.model_extra["podium"]
for step in podium["steps"]:
    print(f"{step['started_s']:.2f} to {step['ended_s']:.2f} s  {step['worker']}: {step['output']}")
print("answer:", answer.choices[0].message.content)
print(f"wall over critical path: {podium['wall_s'] / podium['critical_path_s']:.2f}")
