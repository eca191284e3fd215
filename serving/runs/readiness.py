"""Whether this router can answer, and how well: what `GET /readyz` says.

* `starting` (503): an engine has yet to come up, and this router has not seen all of them up. A newcomer's
  first question waits for the conductor rather than being answered without a plan; for a quarter of an
  hour, if there is a worker that answers.
* `ready` (200): every engine is up, or was scaled to zero, and the conductor plans.
* `degraded` (200): all was up once, or should long have been, and now some of it is not, but there is a
  worker that answers. `waiting_for` has the engines that are down; `conductor` is there where it is the one
  that fails: its engine is down, or run after run gets no plan from it.
* `unavailable` (503): all was up once, and now no worker of the pool can be asked.
"""

import time
from collections.abc import Callable
from typing import Any

from serving.pool import Pool
from serving.runs.conductor_health import ConductorHealth

Json = dict[str, Any]

STARTING_FOR_S = 900.0
"""How long a new router waits for all engines before it lets itself be asked without some of them."""


class Readiness:
    """What is known of the engines of one router."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._was_up = False
        self._clock, self._began_s = clock, clock()

    async def state(self, pool: Pool, health: ConductorHealth) -> tuple[int, Json]:
        """The HTTP status, and what to say."""
        down = await pool.engines_not_ready()
        conductor = _conductor(pool, down, health)
        body: Json = ({"waiting_for": down} if down else {}) | ({"conductor": conductor} if conductor else {})
        if not down:
            self._was_up = True
            return 200, {"status": "degraded" if conductor else "ready", **body}
        may_start = not self._was_up and self._clock() - self._began_s < STARTING_FOR_S
        if not may_start and any(pool.may_answer(name, down) for name in pool.settings.pool):
            return 200, {"status": "degraded", **body}
        return 503, {"status": "unavailable" if self._was_up else "starting", **body}


def _conductor(pool: Pool, down: list[str], health: ConductorHealth) -> Json | None:
    """Why one worker answers by itself; None where the conductor does its work, or there is none."""
    chosen = pool.settings.conductor
    if chosen is None:
        return None
    state: Json = {"worker": chosen.worker, "failures_in_a_row": health.failures}
    if not pool.may_answer(chosen.worker, down):
        return state | {"reason": "its engine is not up"}
    return state | {"reason": health.reason} if health.is_degraded else None
