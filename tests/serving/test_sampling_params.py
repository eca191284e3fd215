"""Sampling parameters for vLLM: the caller's, then the model's defaults."""

from serving.workers.vllm import EngineCall
from tests.lazy import lazy

sampling_params = lazy("serving.deployments.engine:sampling_params")

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
