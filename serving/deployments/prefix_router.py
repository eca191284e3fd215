"""Which replica of an engine gets a call: the one that has seen the prompt's beginning, unless it is much busier than another.

Ray's router of that kind keeps what was seen in one actor for all callers. Whatever ended that actor, the node it happened to be on for
instance, ended the engine with it: Ray starts it no second time, and every call to every replica waits for ever. Here each caller
remembers what it sent itself, so nothing is shared and nothing is asked over the network. Knows nothing of vLLM.
"""

import time
from collections.abc import Sequence
from typing import Any, cast

from ray.llm._internal.serve.routing_policies.prefix_aware import prefix_aware_router, prefix_tree

from conductor.model.terms import Places

RaysRouter = cast(type[Any], prefix_aware_router.PrefixCacheAffinityRouter)
MIN_MATCH = 0.1
"""Of a prompt: with less of it known anywhere the replica that has seen least gets it. Ray's value."""
FULL_CHARS, KEPT_CHARS = 400_000, 360_000
"""Remembered for a replica, and what is left once it was too much. Ray's values."""


class PrefixMemory:
    """The beginnings of prompts that were sent to each replica, as far as this process sent them."""

    def __init__(self) -> None:
        self._tree: Any = cast(Any, prefix_tree).PrefixTree()

    def set_replicas(self, replicas: set[str]) -> None:
        """These there are now; of others everything is forgotten."""
        known = set(self._tree.tenant_to_char_count)
        self._tree.remove_tenants(sorted(known - replicas))
        self._tree.add_tenants(sorted(replicas - known), time.time())

    def note(self, prompt: str, replica: str) -> None:
        """It was sent there; the oldest are forgotten where it becomes too much."""
        self._tree.insert(prompt, replica, time.time())
        if (chars := self._tree.tenant_to_char_count.get(replica, 0)) > FULL_CHARS:
            self._tree.evict_tenant_by_lru(replica, chars - KEPT_CHARS)

    def best(self, prompt: str, replicas: Sequence[str]) -> list[str]:
        """Those of `replicas` that have seen most of it, or else the least of all; none where none is known."""
        matched, owners = self._tree.prefix_match(prompt, list(replicas))
        if len(matched) < MIN_MATCH * len(prompt):
            owners = self._tree.get_smallest_tenants()
        return [each for each in owners or () if each in replicas]


class PrefixRouter(RaysRouter):
    """Ray's, with a memory of its own.

    Args:
        imbalanced_threshold: calls that one replica may have more than another before load decides.
    """

    def initialize_state(self, imbalanced_threshold: float) -> None:
        """Called by Ray Serve, once."""
        self._memory = PrefixMemory()
        # An actor given keeps Ray's from being made; all that would call it is below.
        rays: Any = super()
        rays.initialize_state(imbalanced_threshold=imbalanced_threshold, tree_actor=self._memory)

    @property
    def _above(self) -> Any:
        """What Ray's router is made of, over the methods in which it asks its actor."""
        return cast(Any, super(RaysRouter, self))

    @property
    def _names(self) -> set[str]:
        """Of those there are. Copied first: Ray may change the set in another thread."""
        return {_name(each) for each in list(self._replica_id_set)}

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """It gets no call from now on."""
        self._above.on_replica_actor_died(replica_id)
        self._memory.set_replicas(self._names)

    def update_replicas(self, replicas: list[Any]) -> None:
        """These there are."""
        self._above.update_replicas(replicas)
        self._memory.set_replicas(self._names)

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """As Ray's. A call that is made once more, because it failed or is late, goes to the least busy one where it has
        not gone: wherever its prompt is known, it is where it went before.
        """
        places = _places_of(pending_request)
        others = [each for each in candidate_replicas if _name(each.replica_id) not in places.taken]
        if not places.taken or not others:
            rays: Any = super()
            return await rays.choose_replicas(candidate_replicas, pending_request)
        pending_request.routing_context.should_backoff = True  # Ray looks again at once where this is not set
        return [others]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """A call was sent there."""
        if pending_request and pending_request.args:
            self._memory.note(self._extract_text_from_request(pending_request), _name(replica_id))
            places = _places_of(pending_request)
            places.take(_name(replica_id), lambda: not self._names <= places.taken)

    async def _prefix_match_best_replicas(
        self, pending_request: Any, candidate_replicas: list[Any]
    ) -> list[list[Any]]:
        """The best of them; an empty list where Ray is to draw two and take the less busy one."""
        if not (pending_request and pending_request.args) or await self._is_uneven(candidate_replicas):
            return [[]]
        by_id = {_name(each.replica_id): each for each in candidate_replicas}
        best = self._memory.best(self._extract_text_from_request(pending_request), list(by_id))
        return [[by_id[each] for each in best]]

    async def _is_uneven(self, replicas: list[Any]) -> bool:
        """Whether one of them has so many more calls than another that load decides."""
        known: list[int] = []
        unknown: list[Any] = []
        for replica in replicas:
            length = self._queue_length(replica)
            known += [] if length is None else [length]
            unknown += [replica] if length is None else []
        known += [n for _, n in await self._probe_queue_lens(unknown, 0) if n is not None]
        return bool(known) and max(known) - min(known) > self._imbalanced_threshold

    def _queue_length(self, replica: Any) -> int | None:
        """As far as it is known without asking; a full one may have room by now."""
        if not self._use_replica_queue_len_cache:
            return None
        length: int | None = self._replica_queue_len_cache.get(replica.replica_id)
        return None if length is None or length >= replica.max_ongoing_requests else length


def _name(replica_id: Any) -> str:
    return replica_id.to_full_id_str()


def _places_of(pending_request: Any) -> Places:
    """Where the call has gone. Ray hands routers the call itself, not a copy: what is written is read by who made it."""
    call = pending_request.args[0] if pending_request and pending_request.args else None
    return getattr(call, "places", None) or Places()
