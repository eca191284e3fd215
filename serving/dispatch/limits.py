"""Limits for the silence of a worker, learned from its calls and bounded by a share of the caller's time.

`serving/workers/stall_timer.py` measures the silence, because the client can tell tokens from comments, pings
and headers. The first token and pauses are limited only while another worker is free to answer.
"""

import time

from conductor.model.terms import AttemptLimits, Pauses, Terms
from serving.health import WorkerHealth

KNOWN_CALLS = 20
"""Minimum number of measured first tokens, or of complete answers."""
FIRST_WORD_WITHIN_S = 15.0
"""Target for the client's first token, from any worker."""
FALLBACK_S = 2.0
"""Part of `FIRST_WORD_WITHIN_S` for the fallback to start."""
START_S = FIRST_WORD_WITHIN_S - FALLBACK_S
"""Limit for the first token while too few are measured."""
FAILING_S = 30.0
"""Limit while the worker is failing. Older times do not apply then, and a worker that is only slower can
recover.
"""
TIMES_P99 = 4.0
LEAST_S = 10.0
SHARE = 0.5
"""Share of the time until the deadline. The rest is for the fallback."""
TELLING_TIMES_P99 = 2.0
TELLING_LEAST_S = 3.0
LEAST_PAUSE_S = 20.0
"""High, because a cut answer is paid and partly shown already."""


def limits_of(
    terms: Terms, health: WorkerHealth, *, learns_first_token: bool | None, learns_pauses: bool
) -> AttemptLimits:
    """Return the limits of one attempt.

    Args:
        terms: terms of the call. `has_fallback` is set if another worker is free.
        health: health of the worker.
        learns_first_token: whether the usual time to the first token limits the attempt. If False, only the
            settings do. None: no limit for the first token.
        learns_pauses: whether the usual pauses limit the attempt.
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
    """Return the time after which the first token is unlikely to arrive, in seconds."""
    p99_s = _p99_s(health)
    if p99_s is None:
        return START_S
    return max(LEAST_S, TIMES_P99 * p99_s) if health.circuit == "closed" else FAILING_S


def telling_silence_s(health: WorkerHealth) -> float:
    """Return the silence after which a call that the caller gave up counts as a failure, in seconds.

    It is at most `usual_limit_s`, and may be shorter because it ends no call.
    """
    p99_s = _p99_s(health)
    telling_s = LEAST_S if p99_s is None else max(TELLING_LEAST_S, TELLING_TIMES_P99 * p99_s)
    return min(telling_s, usual_limit_s(health))


def usual_pause_s(health: WorkerHealth) -> float | None:
    """Return the pause after which the next token is unlikely to arrive, in seconds, or None if too few are
    measured.
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
