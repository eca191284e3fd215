"""Follow-up turns of a conversation: whether the worker of the last answer keeps the conversation, and its cache.

Reading a conversation from a provider's cache costs about a tenth of reading it again. The functions compare what a
switch to another worker costs with what it is expected to gain. They know prices and token counts, but not the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from conductor.model.call import Call
from conductor.model.characters import byte_size
from conductor.model.terms import Callee
from conductor.model.usage import ESTIMATE_BYTES_PER_TOKEN, MILLION, Rates, Usage
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan, Step
from conductor.run.call_bound import sent_bytes

Course = Literal["stay", "speculate", "ask"]
"""How a follow-up turn is answered.

- `stay`: the conversation's worker answers, and no plan is written.
- `speculate`: the conversation's worker is called while the conductor decides.
- `ask`: the conductor decides first.
"""
MOST_TURNS_EXPECTED = 10
"""Maximum number of further turns that a gain is expected for. A conversation is expected to last as long again."""
TOKENS_PER_S = 100
"""Assumed output speed of a worker that is called while the conductor decides, in tokens per second."""
KEPT_WEIGHT = 0.98
"""Factor by which each turn reduces the counts of earlier turns."""
NEW_TIME_WEIGHT = 0.1
"""Weight of the newest plan in the mean time of a plan."""


@dataclass(slots=True, eq=False)
class Agreement:
    """Counts of follow-up turns in which the conductor's plan kept the conversation's worker or replaced it.

    One object per pool. Older turns count less.
    """

    agreed: float = 9.0
    differed: float = 1.0
    plan_s: float = 0.4
    """Mean time that a plan takes, in seconds."""

    def note(self, *, agrees: bool, plan_s: float) -> None:
        """Count a turn.

        Args:
            agrees: whether the conversation's worker was kept.
            plan_s: time that the plan took, in seconds.
        """
        self.agreed = KEPT_WEIGHT * self.agreed + agrees
        self.differed = KEPT_WEIGHT * self.differed + (not agrees)
        self.plan_s += NEW_TIME_WEIGHT * (plan_s - self.plan_s)

    @property
    def share_differing(self) -> float:
        """Share of turns in which the worker was replaced."""
        return self.differed / (self.agreed + self.differed)


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Facts about a turn of a conversation whose last answer came from `worker`.

    Args:
        worker: worker of the last answer.
        prompt_tokens: tokens of this turn's prompt, estimated.
        cached_tokens: tokens of this conversation that are in a provider's cache now, by worker. 0 if the provider has
            no lower price for cached tokens.
        answer_tokens: mean length of the answers so far, in tokens.
        turns: number of user turns before this one.
        is_tool_loop: whether the conversation ends with tool results.
        stickiness: weight of the lost cache, or 0 if the conductor alone decides.
        usd_per_s: value of a second of waiting, in US dollars, or None to never speculate.
        why_ask: why the worker must not be called before the conductor has decided, or "" if it may be called.
        agreement: counts of earlier decisions of this pool.
        deployment: deployment of `worker` whose cache has the conversation, or "" if there is none.
        writes_hour: whether cache writes are billed for a lifetime of an hour.
    """

    worker: str
    prompt_tokens: int
    cached_tokens: Mapping[str, int]
    answer_tokens: int
    turns: int
    is_tool_loop: bool
    stickiness: float
    usd_per_s: Decimal | None
    why_ask: str
    agreement: Agreement
    deployment: str = ""
    writes_hour: bool = False

    @property
    def plan(self) -> Plan:
        """Plan in which the conversation's worker answers the user's own words."""
        return Plan((Step(self.worker, ""),))

    @property
    def home(self) -> tuple[str, str]:
        """Worker and deployment that should be called for the conversation, because its cache is there."""
        return self.worker, self.deployment

    def write_rate(self, rates: Rates) -> Decimal:
        """Return the price at which `rates` bill the tokens of this turn that are not cached."""
        return rates.write_1h if self.writes_hour else rates.write

    def cached(self, worker: str) -> int:
        """Return the tokens of this turn's prompt that are in the cache of `worker`."""
        return min(self.cached_tokens.get(worker, 0), self.prompt_tokens)

    @property
    def may_lose_cache(self) -> bool:
        """True if another worker would lose a cache that counts."""
        return self.stickiness > 0 and self.cached(self.worker) > 0


Pool = Mapping[str, PoolMember]


def cost_usd(worker: str, pool: Pool, follow_up: FollowUp) -> Decimal | None:
    """Return the estimated cost of this turn with `worker`, or None if its price is unknown."""
    return _turn_usd(worker, pool, follow_up, follow_up.answer_tokens)


def _turn_usd(worker: str, pool: Pool, follow_up: FollowUp, answer_tokens: float) -> Decimal | None:
    rates = _rates(worker, pool, follow_up)
    if rates is None:
        return None
    cached = follow_up.cached(worker)
    input_usd = cached * rates.cached + (follow_up.prompt_tokens - cached) * follow_up.write_rate(rates)
    return (input_usd + Decimal(answer_tokens) * rates.output_usd_per_mtok) / MILLION


def _rates(worker: str, pool: Pool, follow_up: FollowUp) -> Rates | None:
    price = pool[worker].price
    return None if price is None else price.rates_for(follow_up.prompt_tokens)


def _others(plan: Plan, follow_up: FollowUp) -> list[str]:
    """Return the workers of `plan` that have not given the last answer."""
    return [name for name in dict.fromkeys(step.worker for step in plan.steps) if name != follow_up.worker]


def lost_usd(plan: Plan, pool: Pool, follow_up: FollowUp) -> Decimal | None:
    """Return the cost of reading the lost part of the cache again, or None if a price is unknown."""
    own = _rates(follow_up.worker, pool, follow_up)
    lost = Decimal(0)
    for name in _others(plan, follow_up):
        rates = _rates(name, pool, follow_up)
        if own is None or rates is None:
            return None
        n_tokens = max(0, follow_up.cached(follow_up.worker) - follow_up.cached(name))
        lost += n_tokens * max(Decimal(0), follow_up.write_rate(rates) - own.cached) / MILLION
    return lost


def gain_usd(plan: Plan, pool: Pool, follow_up: FollowUp) -> Decimal | None:
    """Return the expected gain of `plan` over the conversation's worker, or None if a price is unknown.

    A better answer is assumed to be worth what this turn costs anyway. A cheaper worker also saves money in each
    further turn.
    """
    gain, now = cost_usd(follow_up.worker, pool, follow_up), _later_usd(follow_up.worker, pool, follow_up)
    later = [_later_usd(name, pool, follow_up) for name in _others(plan, follow_up)]
    costs = [each for each in later if each is not None]
    if gain is None or now is None or len(costs) < len(later):
        return None
    saved = max((now - each for each in costs), default=Decimal(0))
    return gain + min(follow_up.turns, MOST_TURNS_EXPECTED) * max(Decimal(0), saved)


def _later_usd(worker: str, pool: Pool, follow_up: FollowUp) -> Decimal | None:
    """Return the estimated cost of a further turn with `worker`, whose cache then has the conversation."""
    rates = _rates(worker, pool, follow_up)
    if rates is None:
        return None
    output_usd = follow_up.answer_tokens * rates.output_usd_per_mtok
    return (follow_up.prompt_tokens * rates.cached + output_usd) / MILLION


def may_switch(plan: Plan, pool: Pool, follow_up: FollowUp) -> bool:
    """Return whether `plan` may replace the conversation's worker."""
    if not follow_up.may_lose_cache:
        return True
    lost, gain = lost_usd(plan, pool, follow_up), gain_usd(plan, pool, follow_up)
    return not lost or gain is None or Decimal(follow_up.stickiness) * lost <= gain


def why_kept(plan: Plan, pool: Pool, follow_up: FollowUp) -> str:
    """Return why the conversation's worker answers alone if the conductor writes `plan`, or "" if the plan runs."""
    if plan == follow_up.plan:
        return "The conductor chose the worker of the last answer again."
    return why_no_switch(plan, pool, follow_up)


def why_no_switch(plan: Plan, pool: Pool, follow_up: FollowUp) -> str:
    """Return why `plan` may not replace the conversation's worker, or "" if it may."""
    if may_switch(plan, pool, follow_up):
        return ""
    names = " and ".join(_others(plan, follow_up))
    lost, gain = lost_usd(plan, pool, follow_up), gain_usd(plan, pool, follow_up)
    return f"The plan names {names}, but reading this conversation again would cost ${lost:.4f}, and the expected gain is ${gain:.4f}."


def course(pool: Pool, follow_up: FollowUp, *, has_limits: bool, fits_conductor: bool) -> tuple[Course, str]:
    """Return how to answer this turn, and the reason.

    Args:
        pool: workers that the request may use, by name.
        follow_up: facts about the turn.
        has_limits: whether the request limits its cost or its tokens.
        fits_conductor: whether the conductor's prompt fits into the conductor's context.
    """
    if follow_up.is_tool_loop:
        return "stay", "The conversation ends with tool results."
    if not fits_conductor:
        return "stay", "The conversation is too long for the conductor."
    if _is_alone(pool, follow_up):
        return (
            "stay",
            "Reading this conversation again would cost more than any other worker is expected to gain.",
        )
    if follow_up.why_ask:
        return "ask", follow_up.why_ask
    if has_limits:
        return "ask", "The request limits its cost or its tokens."
    agreement = follow_up.agreement
    answer_tokens = min(TOKENS_PER_S * agreement.plan_s, follow_up.answer_tokens)
    miss_usd = _turn_usd(follow_up.worker, pool, follow_up, answer_tokens)
    if follow_up.usd_per_s is None or miss_usd is None:
        return "ask", "Speculation is off, or the price of the worker is unknown."
    if Decimal(agreement.share_differing) * miss_usd > follow_up.usd_per_s * Decimal(agreement.plan_s):
        return "ask", "The expected cost of a lost call is higher than the value of the time that it saves."
    return "speculate", "The worker of the last answer was called while the conductor decided."


def likely_prompt(follow_up: FollowUp | None, call: Call, callee: Callee) -> Usage:
    """Return the probable usage of the prompt of `call`, which was sent to `callee`.

    Its cached tokens are those that the cache of the conversation's deployment is known to have. Any other deployment or
    worker writes the whole prompt to its cache. Without known tokens, the prompt counts as one token per two bytes, which
    is about twice the tokens of normal prose.
    """
    cached = follow_up.cached(follow_up.worker) if follow_up else 0
    if follow_up is None or not cached:
        return Usage(-(-sent_bytes(call) // ESTIMATE_BYTES_PER_TOKEN))
    if (callee.worker, callee.deployment) != follow_up.home:
        cached = 0
    prefix_tokens = -(-byte_size(call.prefix) // ESTIMATE_BYTES_PER_TOKEN)
    new = follow_up.prompt_tokens - cached + prefix_tokens
    new_1h = new if follow_up.writes_hour else 0
    return Usage(cached + new, 0, cached, cache_write_tokens=new, cache_write_1h_tokens=new_1h)


def _is_alone(pool: Pool, follow_up: FollowUp) -> bool:
    """Return whether no other worker of the pool may replace the conversation's worker."""
    others = [name for name in pool if name != follow_up.worker]
    return bool(others) and not any(may_switch(Plan((Step(name, ""),)), pool, follow_up) for name in others)


def describe(pool: Pool, follow_up: FollowUp) -> str:
    """Return what the conductor's prompt says about the cache of each worker, or "" if no cache has a value.

    Args:
        pool: workers in the order in which the conductor sees them.
        follow_up: facts about the turn.
    """
    lines: list[str] = []
    for number, name in enumerate(pool):
        n_tokens, rates = follow_up.cached(name), _rates(name, pool, follow_up)
        worth = n_tokens * (rates.input_usd_per_mtok - rates.cached) / MILLION if rates else Decimal(0)
        if round(worth, 4) > 0:
            line = f"Worker {number} has {n_tokens:,} tokens of this conversation in its cache, worth ${worth:.4f}."
            lines.append(line)
    if not lines or follow_up.worker not in pool:
        return ""
    last = f"Worker {list(pool).index(follow_up.worker)} gave the last answer."
    return " ".join([last, *lines, "Another worker would have to read them again."])
