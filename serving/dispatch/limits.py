"""Limits for how long a worker may send nothing. They are learned from its calls, and bounded by a share of
the time that the caller has left.

`serving/workers/stall_timer.py` measures the silence, because the worker's client can tell tokens from
comments, pings and headers.

The first token and pauses are limited only while another worker is free to answer.
"""

import time

from conductor.model.terms import AttemptLimits, Pauses, Terms
from serving.health import WorkerHealth

KNOWN_CALLS = 20
"""Number of measured first tokens, or of complete answers, from which limits are learned."""
FIRST_WORD_WITHIN_S = 15.0
"""Target for the seconds until the client gets its first token, whichever worker sends it."""
FALLBACK_S = 2.0
"""Part of `FIRST_WORD_WITHIN_S` for the fallback to start."""
START_S = FIRST_WORD_WITHIN_S - FALLBACK_S
"""Limit for the first token while too few are measured."""
FAILING_S = 30.0
"""Limit for the first token while the worker is failing. Times that were measured earlier do not apply then.
The limit is long, so that a worker that only became slower can recover.
"""
TIMES_P99 = 4.0
LEAST_S = 10.0
SHARE = 0.5
"""Share of the time until the deadline that one attempt may use. The rest is for the fallback."""
TELLING_TIMES_P99 = 2.0
TELLING_LEAST_S = 3.0
LEAST_PAUSE_S = 20.0
"""Minimum limit for a pause. It is high, because an answer that is cut off is already paid for and partly
shown.
"""


def limits_of(
    terms: Terms, health: WorkerHealth, *, learns_first_token: bool | None, learns_pauses: bool
) -> AttemptLimits:
    """Return how long one attempt may wait for its first token and between tokens.

    Args:
        terms: terms of the call. `has_fallback` is set if another worker is free.
        health: health of the worker.
        learns_first_token: whether the first token is limited by the worker's usual time. If False, only the
            settings limit it. If None, it has no limit.
        learns_pauses: whether pauses between tokens are limited by the worker's usual pauses.
    """
    limits = AttemptLimits(places=terms.limits.places)
    if terms.has_fallback and learns_first_token is not None:
        limits.first_token_s = usual_limit_s(health) if learns_first_token else None
        limits.patience_s = _patience_s(terms)
    if learns_pauses:
        is_limited = terms.has_fallback and terms.outlasts_break
        limits.pauses = Pauses(usual_pause_s(health) if is_limited else None)
    return limits


def usual_limit_s(health: WorkerHealth) -> float:
    """Return the seconds after which a first token that has not arrived is unlikely to arrive."""
    p99_s = _p99_s(health)
    if p99_s is None:
        return START_S
    return max(LEAST_S, TIMES_P99 * p99_s) if health.circuit == "closed" else FAILING_S


def telling_silence_s(health: WorkerHealth) -> float:
    """Return the seconds of silence after which a call counts as a failure of the worker if the caller gave
    up.

    The result is at most `usual_limit_s`. It may be shorter than that, because it does not end a call.
    """
    p99_s = _p99_s(health)
    telling_s = LEAST_S if p99_s is None else max(TELLING_LEAST_S, TELLING_TIMES_P99 * p99_s)
    return min(telling_s, usual_limit_s(health))


def usual_pause_s(health: WorkerHealth) -> float | None:
    """Return the seconds after which the next token of an answer is unlikely to arrive.

    Return None if too few pauses are measured, or if the worker is unhealthy.
    """
    if health.pauses < KNOWN_CALLS or health.circuit != "closed":
        return None
    return max(LEAST_PAUSE_S, TIMES_P99 * (health.pause_s(0.99) or 0.0))


def _p99_s(health: WorkerHealth) -> float | None:
    return health.first_token_s(0.99) if health.first_tokens >= KNOWN_CALLS else None


def _patience_s(terms: Terms) -> float | None:
    if terms.deadline_at_s is None:
        return None
    return max(0.0, SHARE * (terms.deadline_at_s - time.monotonic()))
