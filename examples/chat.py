"""Ask a conductor one question with the official SDK, and show the answer and the steps behind it."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")

answer = client.chat.completions.create(
    model="podium-mini",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
)

print("answer:", answer.choices[0].message.content)

podium = answer.model_extra["podium"]  # fields that Podium adds to OpenAI's
for step in podium["steps"]:
    print(f"step {step['step']}: {step['worker']} read {step['access']}, {step['status']}")
print(f"cost: ${podium['cost_usd']}, took {podium['wall_s']:.2f} s, workflow {podium['workflow_id']}")
print(f"tokens: {answer.usage.total_tokens} in all, {answer.usage.completion_tokens} of them are the answer")
