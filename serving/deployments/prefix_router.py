"""Route each call to the engine replica that has the prompt's prefix in its cache, unless it is too busy.

Calls of a conversation go to the replica that the hash of its id chooses. All routers choose alike, and a
conversation does not follow a system prompt that it shares with others. For other calls, each router remembers
which prefixes it sent where.

Ray's own router of this kind stores the prefixes of all callers in one actor. If that actor ends, for example
with its node, Ray does not restart it, and every call to every replica waits forever. Here each caller
remembers only the prompts that it sent itself, so no state is shared and no network call is needed. This
module does not depend on vLLM.
"""

import time
from collections.abc import Sequence
from typing import Any, cast

from ray.llm._internal.serve.routing_policies.prefix_aware import prefix_aware_router, prefix_tree

from conductor.model.terms import Places
from serving.fairness import unit_hash

RaysRouter = cast(type[Any], prefix_aware_router.PrefixCacheAffinityRouter)
MIN_MATCH = 0.1
"""Minimum share of a prompt that a replica must have seen, as in Ray. Else the emptiest memory is chosen."""
FULL_CHARS, KEPT_CHARS = 400_000, 360_000
"""Maximum characters remembered for a replica, and those left after eviction, as in Ray."""


class PrefixMemory:
    """Prefixes of the prompts that this process sent to each replica."""

    def __init__(self) -> None:
        self._tree: Any = cast(Any, prefix_tree).PrefixTree()

    def set_replicas(self, replicas: set[str]) -> None:
        """Set the current replicas, and forget the prompts of all others."""
        tenants = set(self._tree.tenant_to_char_count)
        self._tree.remove_tenants(sorted(tenants - replicas))
        self._tree.add_tenants(sorted(replicas - tenants), time.time())

    def note(self, prompt: str, replica: str) -> None:
        """Remember that `prompt` was sent to `replica`, and evict the oldest prompts above `FULL_CHARS`."""
        self._tree.insert(prompt, replica, time.time())
        if (chars := self._tree.tenant_to_char_count.get(replica, 0)) > FULL_CHARS:
            self._tree.evict_tenant_by_lru(replica, chars - KEPT_CHARS)

    def best(self, prompt: str, replicas: Sequence[str]) -> list[str]:
        """Return the replicas that have seen most of the prompt, or below `MIN_MATCH` those with the fewest
        characters.
        """
        matched, owners = self._tree.prefix_match(prompt, list(replicas))
        if len(matched) < MIN_MATCH * len(prompt):
            owners = self._tree.get_smallest_tenants()
        return [each for each in owners or () if each in replicas]


class PrefixRouter(RaysRouter):
    """Ray's prefix router, with a memory in this process. If two replicas' open calls differ by more than the
    threshold, the less busy one is chosen.
    """

    def initialize_state(self, imbalanced_threshold: float) -> None:
        """Create the memory. Ray Serve calls this once."""
        self._memory = PrefixMemory()
        # Passing an actor keeps Ray from creating its own. The methods that call it are overridden below.
        rays: Any = super()
        rays.initialize_state(imbalanced_threshold=imbalanced_threshold, tree_actor=self._memory)

    @property
    def _above(self) -> Any:
        """Ray's base router, which skips the methods of Ray's prefix router that call the actor."""
        return cast(Any, super(RaysRouter, self))

    @property
    def _names(self) -> set[str]:
        """Names of the current replicas. Copied first, because Ray may change the set in another thread."""
        return {_name(each) for each in list(self._replica_id_set)}

    def on_replica_actor_died(self, replica_id: Any) -> None:
        self._above.on_replica_actor_died(replica_id)
        self._memory.set_replicas(self._names)

    def update_replicas(self, replicas: list[Any]) -> None:
        self._above.update_replicas(replicas)
        self._memory.set_replicas(self._names)

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Return candidates in order, like Ray's router. A repeated call goes to the least busy replica that
        has not received it, because the one with its prompt in the cache has.

        The calls of a conversation have the replicas in the same order, each as a rank of its own: if the queue of
        one is full, Ray tries the next. Ray's preference for replicas on the same node or in the same zone does not
        apply, because routers elsewhere would prefer others.
        """
        places, conversation = _places_of(pending_request), _conversation_of(pending_request)
        others = [each for each in candidate_replicas if _name(each.replica_id) not in places.used_names]
        if places.used_names and others:
            ranks = [others]
        elif conversation and not await self._is_uneven(candidate_replicas):
            ranks = [
                [each] for each in sorted(candidate_replicas, key=lambda each: _draw(conversation, each))
            ]
        else:
            rays: Any = super()
            return await rays.choose_replicas(candidate_replicas, pending_request)
        pending_request.routing_context.should_backoff = True  # otherwise Ray retries without a pause
        return ranks

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        if pending_request and pending_request.args:
            self._memory.note(self._extract_text_from_request(pending_request), _name(replica_id))
            places = _places_of(pending_request)
            places.take(_name(replica_id), lambda: not self._names <= places.used_names)

    async def _prefix_match_best_replicas(
        self, pending_request: Any, candidate_replicas: list[Any]
    ) -> list[list[Any]]:
        """Return the replicas with the best match, or none if the load decides. Ray then takes the less busy
        of two.
        """
        if not (pending_request and pending_request.args) or await self._is_uneven(candidate_replicas):
            return [[]]
        by_id = {_name(each.replica_id): each for each in candidate_replicas}
        best = self._memory.best(self._extract_text_from_request(pending_request), list(by_id))
        return [[by_id[each] for each in best]]

    async def _is_uneven(self, replicas: list[Any]) -> bool:
        """Return whether the numbers of open calls differ so much between replicas that the load decides."""
        lengths: list[int] = []
        unknown: list[Any] = []
        for replica in replicas:
            length = self._queue_length(replica)
            lengths += [] if length is None else [length]
            unknown += [replica] if length is None else []
        lengths += [n for _, n in await self._probe_queue_lens(unknown, 0) if n is not None]
        return bool(lengths) and max(lengths) - min(lengths) > self._imbalanced_threshold

    def _queue_length(self, replica: Any) -> int | None:
        """Return the cached queue length of a replica, or None if it is unknown.

        A cached length that fills the queue also counts as unknown, because the queue may have room by now.
        """
        if not self._use_replica_queue_len_cache:
            return None
        length: int | None = self._replica_queue_len_cache.get(replica.replica_id)
        return None if length is None or length >= replica.max_ongoing_requests else length


def _name(replica_id: Any) -> str:
    return replica_id.to_full_id_str()


def _draw(conversation: str, replica: Any) -> float:
    return unit_hash(f"{conversation}\0{_name(replica.replica_id)}")


def _call_of(pending_request: Any) -> Any:
    return pending_request.args[0] if pending_request and pending_request.args else None


def _conversation_of(pending_request: Any) -> str:
    """Return the id of the call's conversation, or "" if it has none."""
    return getattr(_call_of(pending_request), "conversation", "")


def _places_of(pending_request: Any) -> Places:
    """Return the record of the replicas to which the call was sent. It is the caller's own object."""
    return getattr(_call_of(pending_request), "places", None) or Places()
