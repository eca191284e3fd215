"""The ledger of whoever pays for a run: the parent of the run's own ledger (`conductor/run/ledger.py`).

A call is held in the windows of its key and of the key's team, in the store that all routers share, before
it is opened.
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
from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal
from serving.accounts.ledger_store import LedgerStore
from serving.accounts.money import MAX_PICO, to_pico, to_usd
from serving.accounts.rates import days_and_months

logger = logging.getLogger("podium")

WAIT_S = 2.0
"""How long a call waits for others to settle, which mostly takes far less than they hold."""
POLL_S = 0.1
MAX_TOKENS = 2**63 - 1


@dataclass(slots=True, eq=False)
class AccountHold(Hold):
    """A hold that the store knows, too.

    Args:
        request: what it is there.
        price: of the worker.
        is_held: False: the store does not have it, since the call costs nothing or the store was away.
    """

    request: HoldRequest | None = None
    price: Price | None = None
    is_held: bool = True

    @property
    def is_free(self) -> bool:
        """Whether the call costs nothing by its worker's price."""
        return self.price is not None and not self.cost_usd


class AccountLedger:
    """What one run draws from its key and its team: a `conductor.run.ledger.Ledger`.

    Args:
        store: of this replica.
        key_id, team_id: who pays.
        run_id: for the ledger's entries.
        wait_s: how long a call waits where other runs hold what is left.
        refuses_when_away: whether calls with a price are refused while the store is away; else they go on
            without a hold, past any budget, and are entered when it is back, unless this process ends before.
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
        """See `Ledger.hold`.

        Where others hold too much of what is left, this waits for them to settle: as long as calls of the
        same run are open, else a moment. Then, and where nobody holds anything, the answer is shortened to
        what is left. A call whose price is not known
        is refused where there is a budget, and else entered with nothing.

        Raises:
            BudgetExceeded: not even a short answer fits; `retryable` where it would without what others hold.
            StoreUnavailable: the store cannot be reached. Nothing was held.
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
        """See `Ledger.settle`. It is written soon, not now; a call that cost nothing, as was expected, is not.

        What the server of a free worker says that a call cost is entered, past any budget: nothing was held for it.
        """
        hold.settled = True
        if not isinstance(hold, AccountHold) or hold.request is None:
            return
        cost = _pico(cost_usd)
        if hold.is_free and not cost:
            return
        known = usage if usage is not None and usage.is_possible else None
        callee = hold.callee
        bill = Bill(
            hold.request.id,
            cost,
            time.time_ns() // 1000,
            known and known.input_tokens,
            known and known.output_tokens,
            known and known.cached_input_tokens,
            _in_words(callee.price if callee else hold.price, known),
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
                logger.error("a call to %s goes on without a hold, because the store is away", what)
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
        if self._store.is_away and not self._refuses_when_away:  # nobody is kept waiting for it
            raise StoreUnavailable("The store of keys and budgets is away.")
        return await self._store.hold(request)

    def _request(self, price: Price | None, worst_usd: Decimal, what: str) -> HoldRequest:
        made_us = time.time_ns() // 1000
        try:
            amount = to_pico(worst_usd)
        except ValueError as exc:
            raise BudgetExceeded(
                f"A call to {what} could cost {worst_usd:.0f} dollars, which {exc}."
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
    """How many tokens an answer may be long for `room` pico-dollars; below 0: the prompt alone is too
    much.
    """
    left_usd = to_usd(room) - price.most(Usage(input_tokens))
    _, output_rate = price.dearest(input_tokens)
    if left_usd < 0 or not output_rate:
        return -1 if left_usd < 0 else MAX_TOKENS
    return int(left_usd * MILLION / output_rate)


def _pico(cost_usd: Decimal | None) -> int | None:
    """The cost, where it is one: nothing a provider says lowers a bill or breaks the ledger."""
    try:
        return None if cost_usd is None else to_pico(cost_usd)
    except ValueError:
        return None


def _in_words(price: Price | None, usage: Usage | None) -> str | None:
    """Dollars a million tokens, in the tier of `usage`: input, output, and what has a price of its own."""
    if price is None:
        return None
    rates = price.rates_for(usage.input_tokens if usage else 0)
    own = {
        "cached": rates.cached_input_usd_per_mtok,
        "write": rates.cache_write_usd_per_mtok,
        "write_1h": rates.cache_write_1h_usd_per_mtok,
        "reasoning": rates.reasoning_usd_per_mtok,
    }
    told = [f"{rates.input_usd_per_mtok:f}/{rates.output_usd_per_mtok:f}"]
    return " ".join(told + [f"{name}={rate:f}" for name, rate in own.items() if rate is not None])


def _unpriced(refusal: Refusal, what: str) -> BudgetExceeded:
    whose, span = _whose(refusal)
    return BudgetExceeded(
        f"A call to {what} has no price, so its cost cannot be kept under the {whose}'s budget for {span}. Set `price` of the worker.",
        **_amounts(refusal),
    )


def _too_much(refusal: Refusal, what: str, cost: str, why: str, *, others_hold: bool) -> BudgetExceeded:
    """Not even a short answer fits; it would without what others hold, or it would not."""
    whose, span = _whose(refusal)
    amounts = _amounts(refusal)
    remedy = (
        "Others will settle for less: try again soon."
        if others_hold
        else f"Raise the {whose}'s budget, or wait for the next {refusal.id.period} (UTC)."
    )
    facts: dict[str, float] = {"retry_after_s": WAIT_S} if others_hold else {}
    told = ", ".join(f"{name} {amount}" for name, amount in amounts.items())
    return BudgetExceeded(
        f"A call to {what} {why}, more than is left of the {whose}'s budget for {span}: {told}. {remedy}",
        retryable=others_hold,
        cost=cost,
        **facts,
        **amounts,
    )


def _whose(refusal: Refusal) -> tuple[str, str]:
    """`key` or `team`, without its id, and for when."""
    return refusal.id.subject.partition(":")[0], {"day": "today", "month": "this month"}[refusal.id.period]


def _amounts(refusal: Refusal) -> dict[str, str]:
    window = refusal.window
    known = {
        "spent": window.spent,
        "held": window.held,
        "limit": MAX_PICO if window.cap is None else window.cap,
    }
    return {name: f"${to_usd(amount):f}" for name, amount in known.items()}
