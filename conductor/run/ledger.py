"""Enforcement of a run's budget.

The highest cost of a call is reserved before the call and replaced by the actual cost after it. Two parallel steps
can therefore not spend the same money. A run's ledger may have a parent, such as the ledger of an account.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

from conductor.errors import BudgetExceeded
from conductor.model.terms import Callee
from conductor.model.usage import FREE, MILLION, Price, Usage
from conductor.model.value import Value

LEAST_ANSWER_TOKENS = 64
"""Minimum length of an answer, in tokens, if the budget limits it. A shorter one is not worth the cost of the prompt."""


class Budget(Value, frozen=True):
    """Limits of one request for all its calls, including planning. None means unlimited."""

    max_cost_usd: Decimal | None = None
    max_tokens: int | None = None

    def part(self, n: int) -> "Budget":
        """Return the budget of each of `n` requests that share this budget equally."""
        cost_usd = None if self.max_cost_usd is None else self.max_cost_usd / n
        return Budget(cost_usd, None if self.max_tokens is None else max(1, self.max_tokens // n))


@dataclass(slots=True, eq=False)
class Hold:
    """Reservation of a part of the budget for one call."""

    cost_usd: Decimal
    tokens: int
    max_output_tokens: int
    """Longest answer that keeps the call inside the budget. Pass it to the model as its limit."""
    settled: bool = False
    upper: "Hold | None" = None
    """The hold of the same call in the parent ledger."""
    callee: Callee | None = None
    """Worker and deployment that the call was last sent to. None before it is sent."""

    def ask(self, callee: Callee) -> None:
        """Record where the call is sent, here and in the parent ledgers."""
        self.callee = callee
        if self.upper is not None:
            self.upper.ask(callee)


class Ledger(Protocol):
    """Reservation and accounting of money and tokens. The methods are async, so that a ledger can use a database."""

    def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AbstractAsyncContextManager[Hold]:
        """Reserve the maximum cost of a call until the end of the block. Without `settle` in it, the whole
        hold counts as spent. Raise BudgetExceeded if not even a short answer fits.
        """
        ...

    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        """Replace the reserved amounts by the actual ones. Unknown or impossible ones count as reserved.
        `is_bound` marks an upper bound.
        """
        ...


@dataclass(slots=True, eq=False)
class BudgetLedger:
    """Ledger of one budget, in memory, for one event loop. Calls whose usage stays unknown count with their
    hold; the record still shows their cost as unknown.
    """

    budget: Budget = Budget()
    spent_usd: Decimal = Decimal(0)
    spent_tokens: int = 0
    parent: Ledger | None = None
    """Ledger in which every hold is reserved as well."""
    holds: list[Hold] = field(default_factory=list[Hold])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[Hold]:
        """See `Ledger.hold`. If other holds leave too little, wait until they settle, because most calls use
        far less. Otherwise reduce the length of the answer.
        """
        hold = await self._reserve(price, input_tokens, max_output_tokens, what)
        self.holds.append(hold)
        async with AsyncExitStack() as stack:
            if self.parent is not None:
                parent_hold = self.parent.hold(price, input_tokens, hold.max_output_tokens, what)
                try:
                    hold.upper = await stack.enter_async_context(parent_hold)
                except BaseException:  # including a cancelled wait: no model was called
                    self._book(hold, Decimal(0), 0)
                    raise
                if hold.upper.max_output_tokens < hold.max_output_tokens:
                    self._shorten(hold, self._make_hold(price, input_tokens, hold.upper.max_output_tokens))
            try:
                yield hold
            finally:
                if not hold.settled:
                    self._book(hold, hold.cost_usd, hold.tokens)

    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        knows_cost = cost_usd is not None and cost_usd.is_finite() and cost_usd >= 0
        knows_tokens = usage is not None and usage.is_possible
        self._book(
            hold,
            cost_usd if cost_usd is not None and knows_cost else hold.cost_usd,
            usage.total_tokens if usage is not None and knows_tokens else hold.tokens,
        )
        if self.parent is not None and hold.upper is not None:
            await self.parent.settle(hold.upper, cost_usd, usage, is_bound=is_bound)

    def spend(self, cost_usd: Decimal, usage: Usage) -> None:
        """Count what earlier processes have spent on this run."""
        self.spent_usd += cost_usd
        self.spent_tokens += usage.total_tokens

    @property
    def on_hold_usd(self) -> Decimal:
        """Money reserved for open calls."""
        return sum((hold.cost_usd for hold in self.holds), Decimal(0))

    @property
    def on_hold_tokens(self) -> int:
        """Tokens reserved for open calls."""
        return sum(hold.tokens for hold in self.holds)

    def _book(self, hold: Hold, cost_usd: Decimal, tokens: int) -> None:
        hold.settled = True
        self.holds.remove(hold)
        self.spent_usd += cost_usd
        self.spent_tokens += tokens
        self._notify_waiting()

    def _shorten(self, hold: Hold, shorter: Hold) -> None:
        """Reduce `hold` to the shorter answer that the parent ledger allows."""
        hold.cost_usd, hold.tokens = shorter.cost_usd, shorter.tokens
        hold.max_output_tokens = shorter.max_output_tokens
        self._notify_waiting()

    def _notify_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reserve(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> Hold:
        while True:
            room = self._room(price, input_tokens)
            if room is None or room >= max_output_tokens:
                return self._make_hold(price, input_tokens, max_output_tokens)
            if not self._can_be_freed:
                if room < min(LEAST_ANSWER_TOKENS, max_output_tokens):
                    raise self._budget_error(price, input_tokens, max_output_tokens, what)
                return self._make_hold(price, input_tokens, room)
            await self._changed.wait()

    @property
    def _can_be_freed(self) -> bool:
        """Whether open calls hold a part of the limited budget. A free call holds no money."""
        holds_money = self.budget.max_cost_usd is not None and self.on_hold_usd > 0
        return holds_money or (self.budget.max_tokens is not None and bool(self.holds))

    def _make_hold(self, price: Price | None, input_tokens: int, max_output_tokens: int) -> Hold:
        worst = (price or FREE).most(Usage(input_tokens, max_output_tokens))
        return Hold(worst, input_tokens + max_output_tokens, max_output_tokens)

    def _room(self, price: Price | None, input_tokens: int) -> int | None:
        """Return the longest affordable answer in tokens, or None for no limit. Below 0, even the prompt
        costs too much, or the price is unknown.
        """
        rooms = [
            room
            for room in (self._room_by_tokens(input_tokens), self._room_by_cost(price, input_tokens))
            if room is not None
        ]
        return min(rooms) if rooms else None

    def _room_by_tokens(self, input_tokens: int) -> int | None:
        if self.budget.max_tokens is None:
            return None
        return self.budget.max_tokens - self.spent_tokens - self.on_hold_tokens - input_tokens

    def _room_by_cost(self, price: Price | None, input_tokens: int) -> int | None:
        if self.budget.max_cost_usd is None:
            return None
        if price is None:
            return -1
        room_usd = (
            self.budget.max_cost_usd - self.spent_usd - self.on_hold_usd - price.most(Usage(input_tokens))
        )
        if room_usd < 0:
            return -1
        _, output_rate = price.dearest(input_tokens)
        return int(room_usd * MILLION / output_rate) if output_rate else None

    def _budget_error(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> BudgetExceeded:
        """Return the error for the limit that is more restrictive, or for an unknown price."""
        by_tokens, by_cost_room = self._room_by_tokens(input_tokens), self._room_by_cost(price, input_tokens)
        by_cost = by_cost_room is not None and (
            by_tokens is None or price is None or by_cost_room <= by_tokens
        )
        spent, on_hold, limit = (
            (f"${self.spent_usd:f}", f"${self.on_hold_usd:f}", f"${self.budget.max_cost_usd:f}")
            if by_cost
            else (
                f"{self.spent_tokens} tokens",
                f"{self.on_hold_tokens} tokens",
                f"{self.budget.max_tokens} tokens",
            )
        )
        worst = self._make_hold(price, input_tokens, max_output_tokens)
        least = self._make_hold(price, input_tokens, min(LEAST_ANSWER_TOKENS, max_output_tokens))
        cost, why = (
            could_cost(worst.cost_usd, least.cost_usd)
            if by_cost
            else (f"{worst.tokens} tokens", f"could take {worst.tokens} tokens")
        )
        field_name = "podium.max_cost_usd" if by_cost else "podium.max_tokens"
        message = (
            f"The price of {what} or of one of its fallbacks is unknown, so {field_name} ({limit}) cannot be enforced. "
            "Set `price` in the settings of these workers, or remove the limit."
            if price is None and by_cost
            else f"A call to {what} {why}, which exceeds the rest of the run's budget "
            f"(spent: {spent}, held: {on_hold}, limit: {limit}). Raise {field_name}."
        )
        return BudgetExceeded(
            message,
            param=field_name,
            spent=spent,
            held=on_hold,
            limit=limit,
            cost="" if price is None and by_cost else cost,
        )


def could_cost(worst_usd: Decimal, least_usd: Decimal) -> tuple[str, str]:
    """Return the highest cost and the phrase about it. `least_usd` is for the shortest answer worth paying
    for.
    """
    worst, least = (f"${each.normalize():f}" for each in (worst_usd, least_usd))
    shortest = "" if worst == least else f" ({least} with the shortest answer)"
    return worst, f"could cost {worst}{shortest}"
