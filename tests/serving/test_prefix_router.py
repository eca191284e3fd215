"""Which replica of an engine a call goes to, and that nothing which another process holds is needed for it."""

import ast
import inspect

import pytest
from ray.llm._internal.serve.routing_policies.prefix_aware import prefix_aware_router

from serving.deployments import prefix_router
from serving.deployments.prefix_router import FULL_CHARS, KEPT_CHARS, PrefixMemory, PrefixRouter

PLAN = "You lead a team. " * 20


@pytest.fixture
def memory() -> PrefixMemory:
    memory = PrefixMemory()
    memory.set_replicas({"a", "b"})
    return memory


def test_a_prompt_goes_where_its_beginning_was_sent(memory: PrefixMemory) -> None:
    memory.note(PLAN + "Why?", "b")
    memory.note("Something else.", "a")
    assert memory.best(PLAN + "How?", ["a", "b"]) == ["b"]


def test_an_unknown_prompt_goes_to_the_one_that_has_seen_least(memory: PrefixMemory) -> None:
    memory.note(PLAN, "a")
    assert memory.best("Something else.", ["a", "b"]) == ["b"]


def test_of_a_replica_that_is_gone_nothing_is_remembered(memory: PrefixMemory) -> None:
    memory.note(PLAN, "a")
    memory.set_replicas({"b", "c"})
    assert memory.best(PLAN, ["b", "c"]) == ["b", "c"]
    memory.note(PLAN, "a")  # an answer of it that came late
    assert memory.best(PLAN, ["b", "c"]) == ["b", "c"]


def test_only_those_that_may_have_the_call_are_named(memory: PrefixMemory) -> None:
    memory.note(PLAN, "a")
    assert memory.best(PLAN, ["b"]) == ["b"]
    assert PrefixMemory().best(PLAN, ["b"]) == []


def test_what_is_remembered_is_bounded(memory: PrefixMemory) -> None:
    for n in range(60):
        memory.note(f"{n:05d}" * 2_000, "a")
        assert memory._tree.tenant_to_char_count["a"] <= FULL_CHARS
    assert memory._tree.tenant_to_char_count["a"] > KEPT_CHARS - 20_000
    assert memory.best("00059" * 2_000, ["a", "b"]) == ["a"], "the newest is kept"


def test_whatever_of_rays_router_asks_its_actor_is_ours() -> None:
    """Its actor is one for all callers, started once: when its node is gone, each call waits for ever."""
    tree = ast.parse(inspect.getsource(prefix_aware_router.PrefixCacheAffinityRouter))
    asks = {
        method.name
        for method in ast.walk(tree)
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and "_tree_actor" in ast.dump(method)
    }
    assert asks
    assert asks <= vars(PrefixRouter).keys()
    assert "ray.get(" not in inspect.getsource(prefix_router)
