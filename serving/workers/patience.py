"""Limits for how long a worker without HTTP, such as a vLLM engine or a plugin, may be silent."""

from dataclasses import dataclass
from math import inf

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from serving.workers.stall_timer import StallTimer, shorter

STALL_S = 120.0
"""Maximum seconds between two tokens of an engine, including tokens of thoughts. A step that also reads long
prompts takes long, and so does a request that was preempted for lack of memory.
"""
FIRST_TOKEN_S = 300.0
"""Maximum seconds until the first token of an engine. Calls wait in its queue, and a long prompt takes
minutes without a GPU. The limit is half of the default deadline of a request, so that a retry has as much
time.
"""
BATCH_S = 600.0
"""Value of both limits for batch calls, which let all other calls go first."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits from a worker's settings, in seconds. None stands for the default."""

    stall_timeout_s: float | None = None
    first_token_timeout_s: float | None = None

    def with_engine(self, call: Call) -> StallTimer:
        """Build the timer that ends a call if its engine is silent for too long.

        Limits that were learned from the engine's usual first tokens and pauses do not apply to batch calls,
        which let all other calls go first.
        """
        yields = call.terms.priority == "batch"
        first_s = self.stall_timeout_s or (BATCH_S if yields else FIRST_TOKEN_S)
        silence_s = self.stall_timeout_s or (BATCH_S if yields else STALL_S)
        usual_s = None if yields or self.first_token_timeout_s else call.terms.limits.first_token_s
        return StallTimer(
            silence_s,
            lambda _: silent("The engine"),
            self.first_token_timeout_s or first_s,
            shorter(usual_s, call.terms.limits.patience_s),
            None if yields or self.stall_timeout_s else call.terms.limits.pauses,
        )

    def with_plugin(self, name: str, call: Call) -> StallTimer:
        """Build the timer that ends a call if the plugin `name` is silent for too long.

        Without limits in the settings, the plugin may be silent forever, unless a fallback needs the rest of
        the call's time.
        """
        silence_s = self.stall_timeout_s or inf
        return StallTimer(
            silence_s, lambda _: silent(name), self.first_token_timeout_s, call.terms.limits.patience_s
        )


USUAL = Patience()


def silent(name: str) -> WorkerUnavailable:
    """Return the error for a worker that was silent for too long. The call may be retried, because silence
    costs nothing.
    """
    return WorkerUnavailable(
        f"{name} sent no output within the time limit. Try again.",
        worker=name,
        detail="Raise first_token_timeout_s or stall_timeout_s if the worker needs more time.",
    )
