"""Parameters for vLLM: the caller's, then the model's defaults, and the salt that separates prompt caches."""

import pytest

from conductor.model.call import Call, CallSite
from conductor.model.messages import Message
from conductor.model.operation import CallKind
from conductor.model.terms import Terms
from serving.workers.vllm import EngineCall, VllmWorker
from tests.lazy import lazy
from tests.serving.workers.subjects import Behaviour, ScriptedEngine

sampling_params = lazy("serving.deployments.engine:sampling_params")
with_salt = lazy("serving.deployments.engine:with_salt")
tokens_input = lazy("vllm.inputs.engine:tokens_input")

DEFAULTS = {"temperature": 0.7, "repetition_penalty": 1.15, "top_k": 20, "max_tokens": 9000}
MESSAGES = [{"role": "user", "content": "hi"}]


def test_unset_parameters_have_the_models_defaults() -> None:
    params = sampling_params(EngineCall(MESSAGES, max_tokens=64), 100, DEFAULTS)
    assert (params.temperature, params.repetition_penalty, params.top_k, params.max_tokens) == (
        0.7,
        1.15,
        20,
        64,
    )


def test_a_call_overrides_the_models_defaults_within_the_context() -> None:
    call = EngineCall(MESSAGES, temperature=0.5, penalties={"repetition_penalty": 1.0, "top_k": 5})
    params = sampling_params(call, 100, DEFAULTS)
    assert (params.temperature, params.repetition_penalty, params.top_k, params.max_tokens) == (
        0.5,
        1.0,
        5,
        100,
    )


def test_plans_have_no_default_penalty_on_repetition() -> None:
    params = sampling_params(EngineCall(MESSAGES, ebnf='root ::= "a"'), 100, DEFAULTS)
    assert (params.repetition_penalty, params.top_p) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("terms", "operation", "salt"),
    [
        (Terms(payer="key_1", team="team_1"), "chat", "team_1"),
        (Terms(payer="key_1"), "chat", "key_1"),
        (Terms(payer="key_1"), "text_completion", "key_1"),
        (Terms(payer="key_1", team="team_1"), "plan", ""),
        (Terms(), "chat", ""),
    ],
)
async def test_each_tenant_has_its_own_prompt_cache_except_for_plans(
    terms: Terms, operation: CallKind, salt: str
) -> None:
    engine = ScriptedEngine(Behaviour())
    call = Call((Message.of("user", "hi"),), site=CallSite(operation=operation), terms=terms)
    async with VllmWorker("a", "m", engine).open(call) as reply:
        async for _ in reply:
            pass
    assert engine.calls[0].cache_salt == salt


def test_vllm_receives_the_salt_with_the_prompt() -> None:
    prompt = tokens_input([1, 2])
    assert with_salt(prompt, "team_1") == tokens_input([1, 2], cache_salt="team_1") != prompt
    assert with_salt(prompt, "") == prompt
