"""How a run stays inside its budget.

Reserve before a call, settle after it: two parallel steps cannot spend the same last cent. A run's ledger
may draw on another one, such as an account's.
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
"""An answer cut shorter than this by the budget is not worth paying its prompt for."""


class Budget(Value, frozen=True):
    """What one request may consume, all its calls together, planning included. None: as much as it takes."""

    max_cost_usd: Decimal | None = None
    max_tokens: int | None = None

    def part(self, n: int) -> "Budget":
        """Of `n` requests that share it."""
        cost_usd = None if self.max_cost_usd is None else self.max_cost_usd / n
        return Budget(cost_usd, None if self.max_tokens is None else max(1, self.max_tokens // n))


@dataclass(slots=True, eq=False)
class Hold:
    """A reserved part of a budget, for one call."""

    cost_usd: Decimal
    tokens: int
    max_output_tokens: int
    """How long the answer may be for the call to stay inside the budget: ask the model for no more."""
    settled: bool = False
    upper: "Hold | None" = None
    """The same part of the ledger that this one draws on."""
    callee: Callee | None = None
    """Whom the call was sent to last, who bills it; None: nobody yet."""

    def ask(self, callee: Callee) -> None:
        """Note whom the call is sent to, here and in the ledgers above."""
        self.callee = callee
        if self.upper is not None:
            self.upper.ask(callee)


class Ledger(Protocol):
    """What reserves and counts money and tokens. Its methods may wait, so that one can be kept in a
    database.
    """

    def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AbstractAsyncContextManager[Hold]:
        """Reserve what a call costs at worst; `settle` it inside the block. Whatever is not settled counts
        as spent in full.

        Args:
            price: of the worker to be called.
            input_tokens: an upper bound of the prompt's length.
            max_output_tokens: of the answer's.
            what: whom the money is for, for the error.

        Raises:
            BudgetExceeded: not even a short answer fits. Nothing was held.
        """
        ...

    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        """Replace `hold` by what the call took; by all of it where that is unknown, or nothing a call can
        take.

        Args:
            hold: of the call.
            cost_usd: what it took; None: not known.
            usage: likewise.
            is_bound: `cost_usd` is the most that it can have cost.
        """
        ...


@dataclass(slots=True, eq=False)
class BudgetLedger:
    """Spending under one budget, in memory. Used from one event loop.

    A call whose usage never becomes known (a cut stream) is counted against the budget with all that was
    held for it, while the record says that its cost is unknown.
    """

    budget: Budget = Budget()
    spent_usd: Decimal = Decimal(0)
    spent_tokens: int = 0
    parent: Ledger | None = None
    """Every hold here is held there too."""
    holds: list[Hold] = field(default_factory=list[Hold])
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[Hold]:
        """See `Ledger.hold`.

        Where others hold too much of what is left, this waits for them to settle: they mostly take far less
        than the worst. Where nobody else holds anything, the answer is shortened to what the budget allows.
        """
        hold = await self._reserve(price, input_tokens, max_output_tokens, what)
        self.holds.append(hold)
        async with AsyncExitStack() as stack:
            if self.parent is not None:
                drawn = self.parent.hold(price, input_tokens, hold.max_output_tokens, what)
                try:
                    hold.upper = await stack.enter_async_context(drawn)
                except BaseException:  # also while it waits: nothing was called
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
        """See `Ledger.settle`."""
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
        """Count what was spent before: by the process that ran this run's beginning."""
        self.spent_usd += cost_usd
        self.spent_tokens += usage.total_tokens

    @property
    def on_hold_usd(self) -> Decimal:
        """What is reserved for calls under way."""
        return sum((hold.cost_usd for hold in self.holds), Decimal(0))

    @property
    def on_hold_tokens(self) -> int:
        """Likewise, in tokens."""
        return sum(hold.tokens for hold in self.holds)

    def _book(self, hold: Hold, cost_usd: Decimal, tokens: int) -> None:
        hold.settled = True
        self.holds.remove(hold)
        self.spent_usd += cost_usd
        self.spent_tokens += tokens
        self._tell_waiting()

    def _shorten(self, hold: Hold, shorter: Hold) -> None:
        """Give back what an answer cannot take that the upper ledger cut."""
        hold.cost_usd, hold.tokens = shorter.cost_usd, shorter.tokens
        hold.max_output_tokens = shorter.max_output_tokens
        self._tell_waiting()

    def _tell_waiting(self) -> None:
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
        """Whether calls under way hold some of what is limited: a free call holds no money that its end would free."""
        holds_money = self.budget.max_cost_usd is not None and self.on_hold_usd > 0
        return holds_money or (self.budget.max_tokens is not None and bool(self.holds))

    def _make_hold(self, price: Price | None, input_tokens: int, max_output_tokens: int) -> Hold:
        worst = (price or FREE).most(Usage(input_tokens, max_output_tokens))
        return Hold(worst, input_tokens + max_output_tokens, max_output_tokens)

    def _room(self, price: Price | None, input_tokens: int) -> int | None:
        """How many tokens an answer may be long inside what is left; None: no limit; below 0: the prompt
        alone is too much.
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
        left = self.budget.max_cost_usd - self.spent_usd - self.on_hold_usd - price.most(Usage(input_tokens))
        if left < 0:
            return -1
        _, output_rate = price.dearest(input_tokens)
        return int(left * MILLION / output_rate) if output_rate else None

    def _budget_error(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> BudgetExceeded:
        """The error, about the limit that leaves less room; about the price where there is none."""
        by_tokens, by_cost_room = self._room_by_tokens(input_tokens), self._room_by_cost(price, input_tokens)
        by_cost = by_cost_room is not None and (
            by_tokens is None or price is None or by_cost_room <= by_tokens
        )
        spent, held, limit = (
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
        why = (
            "has no price, so its cost cannot be kept under a limit"
            if price is None and by_cost
            else f"{why}, more than is left"
        )
        field_name = "podium.max_cost_usd" if by_cost else "podium.max_tokens"
        return BudgetExceeded(
            f"A call to {what} {why}: spent {spent}, held {held}, limit {limit}. Raise {field_name}.",
            param=field_name,
            spent=spent,
            held=held,
            limit=limit,
            cost="" if price is None and by_cost else cost,
        )


def could_cost(worst_usd: Decimal, least_usd: Decimal) -> tuple[str, str]:
    """Return the most that a call could cost, and the words for it.

    Args:
        worst_usd: with the longest answer that was asked for.
        least_usd: with the shortest that is worth its prompt.
    """
    worst, least = (f"${each.normalize():f}" for each in (worst_usd, least_usd))
    shortest = "" if worst == least else f" ({least} with the shortest answer)"
    return worst, f"could cost {worst}{shortest}"
