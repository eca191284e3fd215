"""Whether this router can answer, and how well: what `GET /readyz` says.

* `starting` (503): an engine has yet to come up, and this router has not seen all of them up. A newcomer's first question waits for
  the conductor rather than being answered without a plan.
* `ready` (200): every engine is up, or was scaled to zero, and the conductor plans.
* `degraded` (200): all was up once, and now some of it is not, but there is a worker that answers. `waiting_for` has the engines that
  are down; `conductor` is there where it is the one that fails: its engine is down, or run after run gets no plan from it.
* `unavailable` (503): all was up once, and now no worker of the pool can be asked.
"""

from typing import Any

from serving.api.conductor_health import ConductorHealth
from serving.pool import Pool

Json = dict[str, Any]


class Readiness:
    """What is known of the engines of one router."""

    def __init__(self) -> None:
        self._was_up = False

    async def state(self, pool: Pool, health: ConductorHealth) -> tuple[int, Json]:
        """The HTTP status, and what to say."""
        down = await pool.engines_not_ready()
        conductor = _conductor(pool, down, health)
        said: Json = ({"waiting_for": down} if down else {}) | ({"conductor": conductor} if conductor else {})
        if not down:
            self._was_up = True
            return 200, {"status": "degraded" if conductor else "ready", **said}
        if not self._was_up:
            return 503, {"status": "starting", **said}
        if any(pool.may_answer(name, down) for name in pool.settings.pool):
            return 200, {"status": "degraded", **said}
        return 503, {"status": "unavailable", **said}


def _conductor(pool: Pool, down: list[str], health: ConductorHealth) -> Json | None:
    """Why one worker answers by itself; None where the conductor does its work, or there is none."""
    chosen = pool.settings.conductor
    if chosen is None:
        return None
    told: Json = {"worker": chosen.worker, "failures_in_a_row": health.failures}
    if not pool.may_answer(chosen.worker, down):
        return told | {"reason": "its engine is not up"}
    return told | {"reason": health.reason} if health.degraded else None
