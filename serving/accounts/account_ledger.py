"""Ledger of the account that pays for a run. It is the parent of the run's own ledger
(`conductor/run/ledger.py`).

Before a call is sent, its maximum cost is reserved in the shared store. This reservation is called a hold. It
counts against the daily and monthly budgets of the key and its team.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal

from conductor.errors import BudgetExceeded, StoreUnavailable
from conductor.model.usage import FREE, MILLION, Price, Usage
from conductor.run.ledger import LEAST_ANSWER_TOKENS, Hold, could_cost
from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal, days_and_months
from serving.accounts.ledger_store import LedgerStore
from serving.accounts.money import MAX_PICO, MAX_USD, to_pico, to_usd

logger = logging.getLogger("podium")

WAIT_S = 2.0
"""Seconds that a call waits until other calls are settled. Most calls cost far less than their holds."""
POLL_S = 0.1
MAX_TOKENS = 2**63 - 1


@dataclass(slots=True, eq=False)
class AccountHold(Hold):
    """Hold of a run's ledger that is also recorded in the store.

    Args:
        is_held: whether the store has the hold. It is False if the call is free, or if the store was
            unreachable.
    """

    request: HoldRequest | None = None
    price: Price | None = None
    is_held: bool = True

    @property
    def is_free(self) -> bool:
        """True if the call costs nothing at the worker's price."""
        return self.price is not None and not self.cost_usd


class AccountLedger:
    """Ledger that charges the calls of one run to its key and team.

    It implements `conductor.run.ledger.Ledger`.

    Args:
        key_id, team_id: ids of the key and the team that pay.
        wait_s: maximum seconds that a call waits while other runs hold the rest of the budget.
        refuses_when_away: whether to refuse calls with a price while the store is unreachable. If False,
            these calls are sent without a hold, even if they exceed a budget. They are entered in the ledger
            when the store is reachable again, but are lost if this process ends before that.
    """

    def __init__(
        self,
        store: LedgerStore,
        key_id: str,
        team_id: str | None,
        run_id: str,
        *,
        wait_s: float = WAIT_S,
        refuses_when_away: bool = True,
    ) -> None:
        self._store, self._wait_s, self._refuses_when_away = store, wait_s, refuses_when_away
        self._key_id, self._team_id, self._run_id = key_id, team_id, run_id
        self._calls = self._open = 0

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[AccountHold]:
        """Reserve the maximum cost of a call. See `Ledger.hold`.

        If other calls hold too much of the budget, wait until they are settled. The wait has no time limit
        while calls of the same run are open. Otherwise it takes at most `wait_s` seconds. After that, or if
        no other call holds anything, reduce the maximum length of the answer until the call fits.

        A call without a known price is refused if its key or team has a budget. Otherwise it is entered with
        an amount of 0.
        """
        self._calls += 1
        if price is not None and not price.most(Usage(input_tokens, max_output_tokens)):
            nothing, tokens = Decimal(0), input_tokens + max_output_tokens
            request = self._request(price, nothing, what)
            yield AccountHold(nothing, tokens, max_output_tokens, request=request, price=price, is_held=False)
            return
        hold = await self._reserve(price, input_tokens, max_output_tokens, what)
        self._open += 1
        try:
            yield hold
        finally:
            self._open -= 1
            if not hold.settled:
                await self.settle(hold, None, None)

    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        """Replace a hold by the actual cost. See `Ledger.settle`.

        The bill is written in the background. A free call is not written unless the worker's server reports a
        cost. Such a cost is entered even if it exceeds a budget, because nothing was reserved for it.
        """
        hold.settled = True
        if not isinstance(hold, AccountHold) or hold.request is None:
            return
        cost = _pico(cost_usd)
        if hold.is_free and not cost:
            return
        counts = usage if usage is not None and usage.is_possible else None
        callee = hold.callee
        bill = Bill(
            hold.request.id,
            cost,
            time.time_ns() // 1000,
            counts and counts.input_tokens,
            counts and counts.output_tokens,
            counts and counts.cached_input_tokens,
            _in_words(callee.price if callee else hold.price, counts),
            is_bound,
            callee.worker if callee else None,
            (callee.deployment or None) if callee else None,
        )
        if hold.is_held:
            self._store.settle(bill)
        else:
            self._store.enter(Entry(hold.request, bill))

    async def _reserve(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AccountHold:
        until_s = time.monotonic() + self._wait_s
        tokens = max_output_tokens
        least = min(LEAST_ANSWER_TOKENS, max_output_tokens)
        while True:
            worst_usd = (price or FREE).most(Usage(input_tokens, tokens))
            request = self._request(price, worst_usd, what)
            hold = AccountHold(worst_usd, input_tokens + tokens, tokens, request=request, price=price)
            try:
                refusal = await self._hold(request)
            except StoreUnavailable:
                if self._refuses_when_away or self._store.is_full:
                    raise
                logger.error(
                    "The call to %s continues without a hold on the budget, because the store is unreachable",
                    what,
                )
                return replace(hold, request=replace(request, id=uuid.uuid4().hex), is_held=False)
            if refusal is None:
                return hold
            if price is None:
                raise _unpriced(refusal, what)
            window = refusal.window
            can_wait = _tokens_for(price, input_tokens, window.room + window.held) >= least
            if window.held and can_wait and (self._open or time.monotonic() < until_s):
                await asyncio.sleep(POLL_S)
                tokens = max_output_tokens
                continue
            tokens = min(tokens - 1, _tokens_for(price, input_tokens, window.room))
            if tokens < least:
                if not can_wait:
                    self._store.tell_exhausted(refusal)
                shortest = Usage(input_tokens, min(LEAST_ANSWER_TOKENS, max_output_tokens))
                costs = (price.most(Usage(input_tokens, max_output_tokens)), price.most(shortest))
                raise _too_much(refusal, what, *could_cost(*costs), others_hold=can_wait)

    async def _hold(self, request: HoldRequest) -> Refusal | None:
        if self._store.is_away and not self._refuses_when_away:  # do not wait for it
            raise StoreUnavailable("The store of keys and budgets cannot be reached.")
        return await self._store.hold(request)

    def _request(self, price: Price | None, worst_usd: Decimal, what: str) -> HoldRequest:
        made_us = time.time_ns() // 1000
        try:
            amount = to_pico(worst_usd)
        except ValueError as exc:
            raise BudgetExceeded(
                f"A call to {what} could cost {worst_usd:.0f} dollars, but the ledger accepts at most {MAX_USD:.0f} dollars "
                "per call. Request a shorter answer."
            ) from exc
        return HoldRequest(
            uuid.uuid4().hex,
            self._run_id,
            self._calls,
            self._key_id,
            self._team_id,
            *days_and_months(made_us),
            what,
            amount,
            self._store.owner,
            made_us,
            is_unpriced=price is None,
        )


def _tokens_for(price: Price, input_tokens: int, room: int) -> int:
    """Return how many tokens an answer may have for `room` pico-dollars, or -1 if the prompt costs more."""
    left_usd = to_usd(room) - price.most(Usage(input_tokens))
    _, output_rate = price.dearest(input_tokens)
    if left_usd < 0 or not output_rate:
        return -1 if left_usd < 0 else MAX_TOKENS
    return int(left_usd * MILLION / output_rate)


def _pico(cost_usd: Decimal | None) -> int | None:
    """Return the cost in pico-dollars, or None if it is unknown or invalid.

    An invalid cost from a provider must not lower a bill or break the ledger.
    """
    try:
        return None if cost_usd is None else to_pico(cost_usd)
    except ValueError:
        return None


def _in_words(price: Price | None, usage: Usage | None) -> str | None:
    """Return the price as text, such as `2.5/10 cached=0.25`: dollars per million input and output tokens,
    and special rates for `usage`.
    """
    if price is None:
        return None
    rates = price.rates_for(usage.input_tokens if usage else 0)
    extra_rates = {
        "cached": rates.cached_input_usd_per_mtok,
        "write": rates.cache_write_usd_per_mtok,
        "write_1h": rates.cache_write_1h_usd_per_mtok,
        "reasoning": rates.reasoning_usd_per_mtok,
    }
    base = f"{rates.input_usd_per_mtok:f}/{rates.output_usd_per_mtok:f}"
    return " ".join([base, *(f"{name}={rate:f}" for name, rate in extra_rates.items() if rate is not None)])


def _unpriced(refusal: Refusal, what: str) -> BudgetExceeded:
    owner, span = _owner_and_period(refusal)
    return BudgetExceeded(
        f"The price of {what} or of one of its fallbacks is unknown, so the {owner}'s budget for {span} cannot be enforced. Set `price` in the settings of these workers.",
        **_amounts(refusal),
    )


def _too_much(refusal: Refusal, what: str, cost: str, why: str, *, others_hold: bool) -> BudgetExceeded:
    """Return the error for a call that does not fit, even with a short answer. `why` has words about the
    cost; `others_hold` says that only other calls' holds prevent it.
    """
    owner, span = _owner_and_period(refusal)
    amounts = _amounts(refusal)
    remedy = (
        "Open calls hold part of the budget and will release it. Try again soon."
        if others_hold
        else f"Raise the {owner}'s budget, or wait for the next {refusal.id.period} (UTC)."
    )
    facts: dict[str, float] = {"retry_after_s": WAIT_S} if others_hold else {}
    state = ", ".join(f"{name}: {amount}" for name, amount in amounts.items())
    return BudgetExceeded(
        f"A call to {what} {why}, which exceeds the rest of the {owner}'s budget for {span} ({state}). {remedy}",
        retryable=others_hold,
        cost=cost,
        **facts,
        **amounts,
    )


def _owner_and_period(refusal: Refusal) -> tuple[str, str]:
    """Return the budget's owner (`key` or `team`) and its period (`today` or `this month`)."""
    return refusal.id.subject.partition(":")[0], {"day": "today", "month": "this month"}[refusal.id.period]


def _amounts(refusal: Refusal) -> dict[str, str]:
    window = refusal.window
    amounts = {
        "spent": window.spent,
        "held": window.held,
        "limit": MAX_PICO if window.cap is None else window.cap,
    }
    return {name: f"${to_usd(amount):f}" for name, amount in amounts.items()}
