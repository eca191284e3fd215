"""Conversations: which one a request belongs to, and what is known of its earlier turns."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any

from msgspec.structs import replace

from conductor.model.call import Sampling
from conductor.model.messages import NO_TOOLS, Message, cache_marks
from conductor.model.operation import PromptCache
from conductor.model.worker import PoolMember
from conductor.plan.prompt_parts import with_stable_system
from conductor.run.follow_up import FollowUp
from conductor.run.record import Account
from conductor.run.task import Task
from conductor.run.turns import StepTurn
from serving.accounts.caller import Caller
from serving.api.request import ApiRequest
from serving.api.resolve import ResolvedTask
from serving.database.clock import now_us
from serving.pool import Pool
from serving.sessions.execution import DAY_S
from serving.sessions.service import Service
from serving.settings.sections import ConversationSettings
from serving.settings.settings import Settings
from serving.settings.workers import VllmSettings, WorkerSettings
from serving.store.prompt_caches import (
    LIFETIMES_S,
    PromptCacheRow,
    head_of,
    is_unchanged,
    lifetime_of,
    n_messages_read,
    row_ids,
    tail_of,
)
from serving.workers.cache_marks import least_tokens

PREFIX, KEY_PREFIX = "cv_", "key:"
"""Beginnings of a conversation's id, and of a name that is OpenAI's `prompt_cache_key`."""
LIFETIME_S = 300
"""Lifetime of all other caches in seconds. Reads renew it."""
LONG_GAP_S = 240
"""Time between two turns after which breakpoints get a lifetime of an hour (`cache_lifetime: auto`), in seconds."""
QUICK_TURNS = 10
"""Number of user turns in a row without such a time, after which the lifetime is five minutes again. It is high, because
a cache that is lost costs more than the price of an hour for some turns."""


def with_conversation(request: ApiRequest, caller: Caller, settings: ConversationSettings) -> ApiRequest:
    """Return `request` with the id of its conversation, and with the lifetime of its breakpoints if it is fixed."""
    if request.operation != "chat":
        return request
    lifetime = "" if settings.cache_lifetime == "auto" else settings.cache_lifetime
    name = request.conversation_name
    is_named = request.podium.conversation is not None or bool(name and not name.startswith(KEY_PREFIX))
    id = _id_of(request, caller.account)
    sampling = _with_cache(request.sampling, conversation=id, lifetime=lifetime, is_named=is_named)
    return dataclasses.replace(request, sampling=sampling)


def _id_of(request: ApiRequest, account: Account) -> str:
    """Return the id of a request's conversation. It contains the API key, so that API keys never share one."""
    podium, name = request.podium.conversation, request.conversation_name
    if podium is None and name.startswith(PREFIX):
        return name  # an earlier turn's
    if podium is not None:
        name = f"podium:{podium}"
    elif not name or name.startswith(KEY_PREFIX):
        # An application may send the same key with all its requests.
        name = f"{name}\0head:{head_of(request.conversation)}"
    words = f"{account.key_id}\0{name}".encode("utf-8", "surrogatepass")
    return PREFIX + blake2b(words, digest_size=16).hexdigest()


def _with_cache(sampling: Sampling, **changes: Any) -> Sampling:
    cache = replace(sampling.options.prompt_cache or PromptCache(), **changes)
    return replace(sampling, options=replace(sampling.options, prompt_cache=cache))


@dataclass(frozen=True, slots=True)
class History:
    """Stored facts about the turns before a request.

    Args:
        turns: see `Team.earlier_turns`.
        rows: rows of the conversation's prompt caches, newest first.
        at_us: current time, in microseconds since 1970.
    """

    turns: Mapping[str, StepTurn] = dataclasses.field(default_factory=dict[str, StepTurn])
    rows: tuple[PromptCacheRow, ...] = ()
    at_us: int = 0

    def prompt_tokens(self, request: ApiRequest) -> int | None:
        """Return the tokens of the request's prompt, if those of its earlier turns were reported, or else None."""
        messages = with_stable_system(request.conversation)
        if not self.rows or not is_unchanged(self.rows[0], messages, request.tools):
            return None
        unread = tuple(messages[n_messages_read(self.rows[0], messages) :])
        new = dataclasses.replace(request, conversation=unread, tools=NO_TOOLS)
        return self.rows[0].tokens + new.input_token_estimate

    def apply(self, resolved: ResolvedTask, request: ApiRequest) -> ResolvedTask:
        """Return `resolved` with what its run has to know of earlier turns."""
        task, team = resolved.task, resolved.team
        if self.turns:
            team = dataclasses.replace(team, earlier_turns=self.turns)
        if not self.rows:
            return dataclasses.replace(resolved, team=team)
        if resolved.pool.settings.conversation.cache_lifetime == "auto":
            task = self._with_lifetime(task)
        resolved = dataclasses.replace(resolved, task=task, team=team)
        follow_up = self._follow_up(resolved, request)
        return dataclasses.replace(resolved, team=dataclasses.replace(team, follow_up=follow_up))

    def _with_lifetime(self, task: Task) -> Task:
        """Return `task` with a lifetime of an hour if the turns of the conversation are too far apart for a cache of five
        minutes.
        """
        newest, n_quick = self.rows[0], 0
        if self.at_us - newest.written_us <= LONG_GAP_S * 1_000_000:
            n_quick = newest.quick_turns + (not task.is_tool_loop)
            if newest.lifetime != "1h" or n_quick >= QUICK_TURNS:
                return task
        return replace(task, sampling=_with_cache(task.sampling, lifetime="1h", quick_turns=n_quick))

    def _follow_up(self, resolved: ResolvedTask, request: ApiRequest) -> FollowUp | None:
        """Return the facts about a follow-up turn, or None if the worker of the last answer cannot answer now."""
        task, team, pool, newest = resolved.task, resolved.team, resolved.pool, self.rows[0]
        members = team.members_for(task)
        if newest.worker not in team.fallbacks(task) or team.conductor is None or task.plan_only:
            return None
        if pool.health[newest.worker].skip_s:
            return None
        tokens = self.prompt_tokens(request)
        waits = task.priority == "interactive" and not request.podium.background
        messages, conversation = with_stable_system(request.conversation), pool.settings.conversation
        warm = {
            row.worker: row
            for row in self.rows
            if row.worker in members
            and is_unchanged(row, messages, request.tools)
            and self._is_warm(row, task, pool)
        }
        return FollowUp(
            worker=newest.worker,
            prompt_tokens=request.input_token_estimate if tokens is None else tokens,
            cached_tokens={
                name: _cached_tokens(row, pool.settings)
                for name, row in warm.items()
                if _bills_less(members[name], row.tokens)
            },
            answer_tokens=newest.answer_tokens,
            turns=newest.turns,
            is_tool_loop=task.is_tool_loop,
            stickiness=conversation.stickiness,
            usd_per_s=conversation.speculation_usd_per_s,
            why_ask=_why_ask(newest.worker, team.conductor.member.name, pool, waits=waits),
            agreement=pool.agreement,
            deployment=warm[newest.worker].deployment if newest.worker in warm else "",
            writes_hour=lifetime_of(task) == "1h",
        )

    def _is_warm(self, row: PromptCacheRow, task: Task, pool: Pool) -> bool:
        """Return whether this turn will probably find the conversation in the provider's cache.

        Only Claude models cache no further than breakpoints, and only OpenAI's have a `retention` or `ttl`.
        """
        cache, worker = task.sampling.options.prompt_cache, pool.settings.worker(row.worker)
        model = _model(worker)
        if not pool.limiters[row.worker].can_reach(row.deployment):
            return False
        if _cached_tokens(row, pool.settings) < least_tokens(model) and not isinstance(worker, VllmSettings):
            return False
        if "claude" in model and not _has_breakpoints(task, worker, pool.settings):
            return False
        retention = cache.retention or cache.ttl if cache else ""
        lifetime_s = LIFETIMES_S.get(row.lifetime if "claude" in model else retention, LIFETIME_S)
        return self.at_us < row.written_us + lifetime_s * 1_000_000


async def find_history(request: ApiRequest, service: Service, caller: Caller) -> History:
    """Return what is known of the turns before a request. It waits for the store only briefly."""
    if request.operation != "chat" or all(each.role in ("system", "user") for each in request.conversation):
        return History()
    account, policy = caller.account, caller.policies.both
    days = [each for each in (service.settings().store.content_days, policy.content_days) if each is not None]
    content_s = min(days, default=inf) * DAY_S
    turns = await service.earlier_turns.find(request.conversation, account, content_s)
    rows, cache = list[PromptCacheRow](), request.sampling.options.prompt_cache
    if cache and request.model in service.settings().models and request.podium.plan is None:
        for id in row_ids(cache, request.conversation):
            if rows := await service.prompt_caches.find(id, account.key_id):
                break
        if not cache.is_named:  # other conversations may have begun alike
            messages = with_stable_system(request.conversation)
            rows = [row for row in rows if _is_continued(row, messages)]
    newest_first = sorted(rows, key=lambda row: row.written_us, reverse=True)
    return History(turns, tuple(newest_first), now_us())


def _is_continued(row: PromptCacheRow, messages: Sequence[Message]) -> bool:
    """Return whether `messages` follow the last user message of `row`. See `is_unchanged` for what comes before it."""
    return len(messages) > row.n_messages and tail_of(messages[: row.n_messages]) == row.tail


def _model(worker: WorkerSettings) -> str:
    """Return the name of the worker's model, or "" if it has none. `model` may name a deployment instead."""
    return str(getattr(worker, "like", None) or getattr(worker, "model", "")).lower()


def _cached_tokens(row: PromptCacheRow, settings: Settings) -> int:
    """Return the tokens that the provider cached in the last call. Claude models cache only up to a breakpoint. Other
    models cache whole prompts, but do not report what they have written.
    """
    return row.cached_tokens if "claude" in _model(settings.worker(row.worker)) else row.tokens


def _has_breakpoints(task: Task, worker: WorkerSettings, settings: Settings) -> bool:
    """Return whether the task's calls of a Claude model have breakpoints: the client's or Podium's."""
    has_own = "cache_control" in getattr(worker, "extra_body", ())
    if has_own or any(cache_marks(task.conversation, task.tools.tools)):
        return True
    sets_them = settings.conversation.breakpoints and task.priority == "interactive"
    return worker.kind == "anthropic" and sets_them


def _bills_less(member: PoolMember, tokens: int) -> bool:
    """Return whether the worker's provider bills cached tokens at a lower price."""
    rates = member.price.rates_for(tokens) if member.price else None
    return rates is not None and rates.cached < rates.input_usd_per_mtok


def _why_ask(worker: str, conductor: str, pool: Pool, *, waits: bool) -> str:
    """Return why the worker must not be called before the conductor has decided, or "" if it may be.

    An early call may be unnecessary, so it must not delay other calls.

    Args:
        worker: worker of the last answer.
        conductor: worker that writes plans.
        pool: pool of this router.
        waits: whether a client waits for the answer.
    """
    if not waits:
        return "No client waits for the answer."
    if _share_machine(worker, conductor, pool.settings):
        return "The worker and the conductor share this machine."
    if not pool.limiters[worker].has_idle:
        return "More than half of the worker's slots would be in use."
    return ""


def _share_machine(worker: str, conductor: str, settings: Settings) -> bool:
    """Return whether worker and conductor are engines on CPUs, which are usually those of one machine."""
    both = [settings.worker(name) for name in (worker, conductor)]
    return all(
        isinstance(each, VllmSettings) and each.stand_in is None and not settings.owner_of(each).scale.gpus
        for each in both
    )
