"""Run a batch with the official SDK: upload a file of questions, download a file of answers."""

import json
import os
import time

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("PODIUM_URL", "http://127.0.0.1:8000") + "/v1", api_key="none")


def line(name: str, question: str) -> str:
    body = {"model": "podium-mini", "messages": [{"role": "user", "content": question}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})


lines = [line("france", "What is the capital of France?"), line("peru", "What is the capital of Peru?")]
sent = client.files.create(file=("questions.jsonl", "\n".join(lines).encode()), purpose="batch")
batch = client.batches.create(input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)

print(f"{batch.status}: {batch.request_counts.completed} of {batch.request_counts.total}")
for answer in map(json.loads, client.files.content(batch.output_file_id).text.splitlines()):
    print(answer["custom_id"], "->", answer["response"]["body"]["choices"][0]["message"]["content"])
