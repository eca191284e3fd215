"""How long a worker may be silent: learned from its own calls, and a share of the caller's time.

The time itself runs in the client (`serving/workers/stall_timer.py`), which knows words from comments, pings and
headers. It is limited only while another worker is free to answer.
"""

import time

from conductor.model.terms import AttemptLimits, Pauses, Terms
from serving.health import WorkerHealth

KNOWN_CALLS = 20
"""So many first tokens, or whole answers, are enough to learn from."""
FIRST_WORD_WITHIN_S = 15.0
"""The client gets its first word within this time, whichever worker it is from."""
FALLBACK_S = 2.0
"""The fallback's share of that: it has to be called and to begin."""
START_S = FIRST_WORD_WITHIN_S - FALLBACK_S
"""Limit of the first token while too few are known."""
FAILING_S = 30.0
"""Limit while the worker's calls fail: older times say nothing then, and a worker that has become slower comes back."""
TIMES_P99 = 4.0
LEAST_S = 10.0
SHARE = 0.5
"""Share of the time until the deadline: the rest is for the fallback."""
TELLING_TIMES_P99 = 2.0
TELLING_LEAST_S = 3.0
LEAST_PAUSE_S = 20.0
"""An answer that is cut is paid and half shown, so a pause must be far from usual."""


def limits_of(
    terms: Terms, health: WorkerHealth, *, learns_first_token: bool | None, learns_pauses: bool
) -> AttemptLimits:
    """Return the limits of one attempt.

    Args:
        terms: of the call; `has_fallback` says whether another worker is free.
        health: of the worker's newest calls.
        learns_first_token: whether its usual time holds, else only the settings' does; None: no limit at all.
        learns_pauses: whether its usual pauses hold.
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
    """Return the time after which a first token is probably not coming."""
    p99_s = _p99_s(health)
    if p99_s is None:
        return START_S
    return max(LEAST_S, TIMES_P99 * p99_s) if health.circuit == "closed" else FAILING_S


def telling_silence_s(health: WorkerHealth) -> float:
    """Return the silence from which on a call that is given up counts as a failure. It is shorter than the limit, since
    nothing is cut by it.
    """
    p99_s = _p99_s(health)
    telling_s = LEAST_S if p99_s is None else max(TELLING_LEAST_S, TELLING_TIMES_P99 * p99_s)
    return min(telling_s, usual_limit_s(health))


def usual_pause_s(health: WorkerHealth) -> float | None:
    """Return the pause after which the next word is probably not coming, or None if too little is known."""
    if health.pauses < KNOWN_CALLS or health.circuit != "closed":
        return None
    return max(LEAST_PAUSE_S, TIMES_P99 * (health.pause_s(0.99) or 0.0))


def _p99_s(health: WorkerHealth) -> float | None:
    return health.first_token_s(0.99) if health.first_tokens >= KNOWN_CALLS else None


def _patience_s(terms: Terms) -> float | None:
    if terms.deadline_at_s is None:
        return None
    return max(0.0, SHARE * (terms.deadline_at_s - time.monotonic()))
