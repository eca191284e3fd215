"""Limit which workers may answer, what an answer may cost and how long it may take; and see a limit hold."""

import os

from openai import APIStatusError, OpenAI

client = OpenAI(
    base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000") + "/v1", api_key="none", max_retries=0
)
workers = [m.id for m in client.models.list() if m.model_extra["podium"].get("in_pool")]
question = [{"role": "user", "content": "Name a prime number above 100."}]


def ask(**limits: object) -> None:
    """Ask within `limits`, and print the answer or the error."""
    print("limits:", limits)
    try:
        answer = client.chat.completions.create(
            model="podium-mini", messages=question, extra_body={"podium": limits}
        )
    except APIStatusError as error:
        print(f"  rejected: {error.status_code}, {error.body['param']}: {error.body['message']}")
    else:
        podium = answer.model_extra["podium"]
        used = {step["worker"] for step in podium["steps"] if step["status"] == "done"}
        print(f"  answered by {sorted(used)} for ${podium['cost_usd']}: {answer.choices[0].message.content}")


ask(max_steps=1, max_cost_usd=0.05, max_tokens=20000, deadline_s=60)
ask(exclude_workers=workers)  # no worker is left
ask(deadline=5)  # unknown field: a misspelt limit is an error
