"""One trace from the client's `traceparent` to the vLLM replicas, over a real OTLP/gRPC receiver."""

import httpx2 as httpx
import pytest
from inline_snapshot import snapshot

from tests.live.default.local import Local
from tests.otlp import tree

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


def test_one_trace_joins_client_router_plan_calls_and_engines(local: Local) -> None:
    body = {
        "model": "podium-ultra", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8,
        "podium": {"plan": [
            {"worker": "solver", "subtask": "Think."}, {"worker": "critic", "subtask": "Doubt."},
            {"worker": "writer", "subtask": "Answer.", "access": [0, 1]},
        ]},
    }  # fmt: skip
    headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    answer = httpx.post(f"{local.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.json()["podium"]["trace_id"] == TRACE

    spans = local.spans.wait_for(
        TRACE, lambda spans: len(spans) >= 14
    )  # three processes send them at different times
    assert {span.parent_id for span in spans if span.parent_id not in {s.span_id for s in spans}} == {CALLER}
    assert tree(spans) == snapshot("""\
podium-router: replica_handle_request router __call__
  podium-router: invoke_workflow podium-ultra
    podium-router: chat models/smollm2-135m step 0
      podium-router: route_to_replica vllm-writer generate
        podium-writer: replica_handle_request vllm-writer generate
          podium-writer: llm_request
    podium-router: chat models/smollm2-135m step 1
      podium-router: route_to_replica vllm-writer generate
        podium-writer: replica_handle_request vllm-writer generate
          podium-writer: llm_request
    podium-router: chat models/smollm2-135m step 2 reads [0, 1]
      podium-router: route_to_replica vllm-writer generate
        podium-writer: replica_handle_request vllm-writer generate
          podium-writer: llm_request\
""")


def test_the_conductors_call_is_a_plan_span_with_usage_and_an_engine_span(local: Local) -> None:
    body = {"model": "podium-mini", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    answer = httpx.post(f"{local.url}/v1/chat/completions", json=body, timeout=120).json()

    spans = local.spans.wait_for(answer["podium"]["trace_id"], _ended)
    run = next(span for span in spans if span.name == "invoke_workflow podium-mini")
    plan = next(span for span in spans if span.name == "plan conductor")
    assert plan.parent_id == run.span_id
    assert run.attributes["podium.workflow_id"] == answer["podium"]["workflow_id"]
    assert plan.attributes["gen_ai.operation.name"] == "plan"
    assert plan.attributes["gen_ai.provider.name"] == "vllm"
    assert plan.attributes["gen_ai.usage.output_tokens"] > 0
    assert plan.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert "gen_ai.input.messages" not in plan.attributes


def _ended(spans: list) -> bool:
    return any(span.name.startswith("invoke_workflow") for span in spans) and any(
        s.name == "plan conductor" for s in spans
    )
