"""Look behind an answer: fetch its whole record by the id in the response."""

import os

import httpx2
from openai import OpenAI

url = os.environ.get("PODIUM_URL", "http://127.0.0.1:8000")
with OpenAI(base_url=url + "/v1", api_key="none") as client:
    raw = client.chat.completions.with_raw_response.create(
        model="podium-ultra", messages=[{"role": "user", "content": "How many days has a leap year?"}]
    )
workflow_id = raw.headers["x-podium-workflow-id"]

record = httpx2.get(f"{url}/v1/workflows/{workflow_id}").raise_for_status().json()
print(
    f"{record['id']}: {record['status']} in {record['wall_s']:.2f} s, ${record['cost_usd']}, trace {record['trace_id']}"
)
for plan in record["plans"]:
    rejected = f", rejected: {plan['why']}" if plan["rejected"] else ""
    print(f"plan {plan['plan']} by {plan['worker'] or plan['source']}, {len(plan['steps'])} steps{rejected}")
for step in record["steps"]:
    print(f"step {step['plan']}.{step['step']}: {step['worker']}, read {step['access']}, {step['status']}")
    print(f"  subtask: {step['subtask'] or 'answer the question'}")
    print(f"  output:  {(step['output'] or '').strip()[:100]}")
    print(f"  tokens: {step['usage']}")
