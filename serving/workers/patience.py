"""How long workers that speak no HTTP may go without a word: engines, and workers of one's own."""

from dataclasses import dataclass
from math import inf

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from serving.workers.stall_timer import StallTimer, shorter

STALL_S = 120.0
"""An engine shows what it thinks, so this is between two tokens: a step beside the longest prompts, or a turn that was
put back for want of memory."""
FIRST_TOKEN_S = 300.0
"""A call may wait in the engine's queue, and a long prompt without a GPU takes minutes. Half of the time that a request
has by itself, so that one more try has as long."""
BATCH_S = 600.0
"""Calls that let all others go first wait longer for either."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What the settings of a worker say."""

    stall_timeout_s: float | None = None
    first_token_timeout_s: float | None = None

    def with_engine(self, call: Call) -> StallTimer:
        """What ends the silence of an engine at `call`; one for each. What is known of first tokens and of pauses does
        not hold for calls that let all others go first.
        """
        yields = call.terms.priority == "batch"
        first_s = self.stall_timeout_s or (BATCH_S if yields else FIRST_TOKEN_S)
        silence_s = self.stall_timeout_s or (BATCH_S if yields else STALL_S)
        usual_s = None if yields or self.first_token_timeout_s else call.terms.limits.first_token_s
        return StallTimer(
            silence_s,
            lambda _: silent("its engine"),
            self.first_token_timeout_s or first_s,
            shorter(usual_s, call.terms.limits.patience_s),
            None if yields or self.stall_timeout_s else call.terms.limits.pauses,
        )

    def with_anyone(self, name: str, call: Call) -> StallTimer:
        """Likewise for `name`, of which nothing is known but what is set: without that it is waited for, unless `call`
        has somewhere else to go.
        """
        silence_s = self.stall_timeout_s or inf
        return StallTimer(
            silence_s, lambda _: silent(name), self.first_token_timeout_s, call.terms.limits.patience_s
        )


USUAL = Patience()


def silent(name: str) -> WorkerUnavailable:
    """`name` said nothing for too long. Nobody bills it for that, so it may be asked again."""
    return WorkerUnavailable(
        f"{name} said nothing for too long. Try again.",
        worker=name,
        detail="Raise first_token_timeout_s or stall_timeout_s if it takes this long.",
    )
