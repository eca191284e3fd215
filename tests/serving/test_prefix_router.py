"""Routing of calls to replicas by prompt prefix, without state of other processes."""

import ast
import inspect
import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.llm._internal.serve.routing_policies.prefix_aware import prefix_aware_router
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from conductor.model.call import Call, Sampling
from conductor.model.messages import Message
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.terms import Places
from serving.deployments import prefix_router
from serving.deployments.prefix_router import FULL_CHARS, KEPT_CHARS, PrefixMemory, PrefixRouter
from serving.workers.vllm import EngineCall, VllmWorker

PLAN = "You lead a team. " * 20


@pytest.fixture
def memory() -> PrefixMemory:
    memory = PrefixMemory()
    memory.set_replicas({"a", "b"})
    return memory


def test_a_prompt_goes_to_the_replica_that_has_its_prefix(memory: PrefixMemory) -> None:
    memory.note(PLAN + "Why?", "b")
    memory.note("Something else.", "a")
    assert memory.best(PLAN + "How?", ["a", "b"]) == ["b"]


def test_an_unknown_prompt_goes_to_the_replica_with_the_fewest_prompts(memory: PrefixMemory) -> None:
    memory.note(PLAN, "a")
    assert memory.best("Something else.", ["a", "b"]) == ["b"]


def test_a_removed_replicas_prompts_are_forgotten(memory: PrefixMemory) -> None:
    memory.note(PLAN, "a")
    memory.set_replicas({"b", "c"})
    assert memory.best(PLAN, ["b", "c"]) == ["b", "c"]
    memory.note(PLAN, "a")  # a late answer from a replica that is gone
    assert memory.best(PLAN, ["b", "c"]) == ["b", "c"]


def test_only_available_replicas_are_returned(memory: PrefixMemory) -> None:
    memory.note(PLAN, "a")
    assert memory.best(PLAN, ["b"]) == ["b"]
    assert PrefixMemory().best(PLAN, ["b"]) == []


def test_the_memory_of_prefixes_is_limited(memory: PrefixMemory) -> None:
    for n in range(60):
        memory.note(f"{n:05d}" * 2_000, "a")
        assert memory._tree.tenant_to_char_count["a"] <= FULL_CHARS
    assert memory._tree.tenant_to_char_count["a"] > KEPT_CHARS - 20_000
    assert memory.best("00059" * 2_000, ["a", "b"]) == ["a"], "the newest is kept"


def test_every_actor_call_of_rays_router_is_overridden() -> None:
    """Ray's router asks one actor for all callers. If the node of the actor is gone, each call hangs."""
    tree = ast.parse(inspect.getsource(prefix_aware_router.PrefixCacheAffinityRouter))
    asks = {
        method.name
        for method in ast.walk(tree)
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and "_tree_actor" in ast.dump(method)
    }
    assert asks
    assert asks <= vars(PrefixRouter).keys()
    assert "ray.get(" not in inspect.getsource(prefix_router)


ENGINE = DeploymentID("engine", "podium")


class Routing:
    """A router over idle replicas with these names."""

    def __init__(self, *names: str) -> None:
        self.router: Any = PrefixRouter(
            deployment_id=ENGINE,
            handle_source=DeploymentHandleSource.REPLICA,
            use_replica_queue_len_cache=True,
        )
        self.router.initialize_state(imbalanced_threshold=10)
        self.be(*names)

    def be(self, *names: str) -> None:
        ids = [ReplicaID(name, ENGINE) for name in names]
        self.replicas = [SimpleNamespace(replica_id=each, max_ongoing_requests=100) for each in ids]
        self.router._replica_id_set = set(ids)
        self.router._replicas = {each.replica_id: each for each in self.replicas}
        self.router._memory.set_replicas({each.to_full_id_str() for each in ids})
        for each in ids:
            self.router._replica_queue_len_cache.update(each, 0)

    async def ranks(self, call: EngineCall) -> list[list[str]]:
        """Return the ranked replicas for the call, and route it to the first."""
        request = PendingRequest([call], {}, RequestMetadata("request", "internal"))
        ranks = await self.router.choose_replicas(self.replicas, request)
        self.router.on_request_routed(request, ranks[0][0].replica_id, None)
        return [[each.replica_id.unique_id for each in rank] for rank in ranks]

    async def route(self, call: EngineCall) -> list[str]:
        (chosen,) = await self.ranks(call)
        return chosen


CALL = EngineCall([{"role": "user", "content": PLAN}])


async def test_a_retried_call_goes_to_another_replica_than_the_one_with_its_prefix() -> None:
    routing = Routing("a", "b")
    (replica,) = (await routing.route(CALL))[:1]
    (other,) = {"a", "b"} - {replica}
    places = Places()
    call = replace(CALL, places=places)
    assert await routing.route(call) == [replica], "where its beginning is known"
    assert places.has_other()
    assert await routing.route(call) == [other]
    assert not places.has_other()


async def test_a_call_that_was_at_every_replica_may_go_to_any() -> None:
    routing, places = Routing("a"), Places()
    call = replace(CALL, places=places)
    assert [await routing.route(call), places.has_other()] == [["a"], False]
    assert await routing.route(call) == ["a"]
    routing.be("a", "c")
    assert places.has_other(), "one that was started since"
    assert await routing.route(call) == ["c"]


def test_the_replicas_a_call_has_used_are_not_sent_with_it() -> None:
    routing = Places()
    routing.take("a", lambda: True)
    assert pickle.loads(pickle.dumps(replace(CALL, places=routing))).places.used_names == set()


def turn_of(number: int) -> EngineCall:
    return replace(CALL, conversation=f"cv_{number}")


async def test_two_routers_choose_the_same_replica_for_a_conversation() -> None:
    one, other = Routing("a", "b", "c"), Routing("c", "a", "b")
    for _ in range(5):
        await one.route(CALL)
    chosen = [await one.ranks(turn_of(number)) for number in range(60)]
    assert [await other.ranks(turn_of(number)) for number in range(60)] == chosen
    assert {tuple(map(len, ranks)) for ranks in chosen} == {(1, 1, 1)}, "a full one is followed by the next"
    assert {ranks[0][0] for ranks in chosen} == {"a", "b", "c"}, "not all where the shared beginning is known"


async def test_only_a_removed_replicas_conversations_move() -> None:
    routing = Routing("a", "b", "c")
    before = [(await routing.ranks(turn_of(number)))[0] for number in range(60)]
    routing.be("a", "c")
    after = [(await routing.ranks(turn_of(number)))[0] for number in range(60)]
    assert all(new == old or old == ["b"] for old, new in zip(before, after, strict=True))


async def test_uneven_load_takes_precedence_over_the_conversation() -> None:
    routing = Routing("a", "b")
    (busy,), _ = await routing.ranks(turn_of(1))
    replica = next(each for each in routing.replicas if each.replica_id.unique_id == busy)
    routing.router._replica_queue_len_cache.update(replica.replica_id, 50)
    assert sorted(await routing.route(turn_of(1))) == ["a", "b"], "the less busy one of both"


async def test_a_repeated_turn_goes_to_another_replica() -> None:
    routing, places = Routing("a", "b"), Places()
    call = replace(turn_of(1), places=places)
    (first,), (second,) = await routing.ranks(call)
    assert await routing.route(call) == [second] != [first]


def test_an_engine_call_includes_its_conversation() -> None:
    def call(*, is_named: bool) -> Call:
        cache = PromptCache(conversation="cv_1", is_named=is_named)
        options = WireOptions(prompt_cache=cache)
        return Call((Message.of("user", "Why?"),), Sampling(options=options))

    worker = VllmWorker("w", "m", None)  # type: ignore[arg-type]
    assert worker._engine_call(call(is_named=True)).conversation == "cv_1"
    assert worker._engine_call(call(is_named=False)).conversation == "", "other requests may begin alike"
