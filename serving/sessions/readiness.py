"""Readiness of this router: the answer to `GET /readyz`.

* `starting` (503): the engines have not all been up yet. This lasts for up to 15 minutes even if a worker
  could already answer without a plan, so that the first requests get plans of the conductor.
* `ready` (200): every engine is up or scaled to zero, the conductor writes plans, and no worker fails.
* `degraded` (200): something is down or fails, but a worker can answer. `waiting_for` lists the engines that
  are down. `failing` lists the workers whose newest calls failed, with the first cause. `conductor` is
  present if the conductor fails: its engine is down, its calls fail, or runs get no plan from it.
* `unavailable` (503): all engines have been up, but now no worker can answer. Either the worker's engine is
  down, or its newest call failed less than `OUT_S` seconds (`serving/health.py`) ago.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from conductor.model.terms import Permit
from serving.health import Fault, WorkerHealth
from serving.pool import Pool
from serving.sessions.pools import ConductorHealth

Json = dict[str, Any]

REFUSED = "New settings were rejected, and the previous ones stay in use. Use a key with the scope `admin` to see the reason."
STARTING_FOR_S = 900.0
"""Seconds for which a new router waits for all engines. After that, it serves requests without those that are
down."""
CHECK_KEPT_S = 1.0
"""Seconds for which the result of a check of all engines is used."""


class Readiness:
    """Readiness of one router. It remembers whether all engines have been up.

    Requests share one check of the engines, because each check is a remote call per engine, and anyone can send
    `GET /readyz`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, kept_s: float = CHECK_KEPT_S) -> None:
        self._was_up = False
        self._clock, self._began_s, self._kept_s = clock, clock(), kept_s
        self._check: tuple[Pool, asyncio.Task[list[str]]] | None = None
        self._check_ends_s = 0.0

    async def state(self, pool: Pool, health: ConductorHealth) -> tuple[int, Json]:
        """Return the HTTP status and the body of the answer to `GET /readyz`."""
        down = await self._engines_not_ready(pool)
        conductor = _conductor(pool, down, health)
        failing = failing_workers(pool)
        body: Json = (
            ({"waiting_for": down} if down else {})
            | ({"conductor": conductor} if conductor else {})
            | ({"failing": failing} if failing else {})
        )
        self._was_up |= not down
        can_answer = any(pool.may_answer(name, down) for name in pool.settings.pool or pool.members)
        if not down and can_answer:
            return 200, {"status": "degraded" if conductor or failing else "ready", **body}
        may_start = not self._was_up and self._clock() - self._began_s < STARTING_FOR_S
        if not may_start and can_answer:
            return 200, {"status": "degraded", **body}
        return 503, {"status": "unavailable" if self._was_up else "starting", **body}

    async def _engines_not_ready(self, pool: Pool) -> list[str]:
        """Return the result of the check that runs or has just ended, or else of a new one."""
        check = self._check
        if check is None or check[0] is not pool or (check[1].done() and self._clock() >= self._check_ends_s):
            check = self._check = pool, asyncio.create_task(self._check_engines(pool), name="engines ready")
        return await asyncio.shield(check[1])  # a cancelled caller must not cancel the check of the others

    async def _check_engines(self, pool: Pool) -> list[str]:
        self._check_ends_s = 0.0
        down = await pool.engines_not_ready()
        self._check_ends_s = self._clock() + self._kept_s
        return down


def _conductor(pool: Pool, down: list[str], health: ConductorHealth) -> Json | None:
    """Return why runs get no plan from the conductor, or None if the conductor works or there is none."""
    conductor = pool.settings.conductor
    if conductor is None:
        return None
    state: Json = {"worker": conductor.worker, "failures_in_a_row": health.failures}
    if down and not pool.may_answer(conductor.worker, down) and pool.may_answer(conductor.worker, ()):
        return state | {"reason": "its engine is not ready"}
    if health.is_degraded:
        return state | {"reason": health.reason}
    own = pool.health[conductor.worker]
    first = own.first_fault.description if own.first_fault else "its calls fail at another router"
    return state | {"reason": first} if own.is_failing else None


def failing_workers(pool: Pool) -> list[Json]:
    """Return the failures of all workers whose newest calls failed. See `worker_failing`."""
    return [failure for name, health in pool.health.items() if (failure := worker_failing(name, health))]


def worker_failing(name: str, health: WorkerHealth) -> Json | None:
    """Return a worker's first failure with its time, and its newest, or None. The `detail` is for operators."""
    if not health.is_failing:
        return None
    return {
        "worker": name,
        "circuit": health.circuit,
        "failures_in_a_row": health.failures_in_a_row,
        "since": _iso(health.first_fault),
        "first": _fault_json(health.first_fault),
        "newest": _fault_json(health.newest_fault),
    }


def for_others(body: Json, permit: Permit) -> Json:
    """Return what a caller with `permit` may see: the workers that it may call, and no error messages, which
    may quote settings, files and other requests.
    """
    public_body = dict(body)
    if "refused_user_config" in public_body:
        public_body["refused_user_config"] = REFUSED
    if (conductor := public_body.pop("conductor", None)) is not None:
        own = {name: value for name, value in conductor.items() if name != "worker" or permit.allows(value)}
        public_body["conductor"] = own | {"reason": conductor["reason"].partition(":")[0]}
    if "failing" in public_body:
        public_body["failing"] = [
            _without_details(each) for each in public_body["failing"] if permit.allows(each["worker"])
        ]
    for field in ("workers", "waiting_for"):
        if field in public_body:
            public_body[field] = [name for name in public_body[field] if permit.allows(name)]
    return {name: value for name, value in public_body.items() if value != [] or name == "workers"}


def _without_details(failing: Json) -> Json:
    def public(fault: Json | None) -> Json | None:
        return fault and {name: value for name, value in fault.items() if name in ("error", "at")}

    return failing | {"first": public(failing["first"]), "newest": public(failing["newest"])}


def _fault_json(fault: Fault | None) -> Json | None:
    if fault is None:
        return None
    return {"error": fault.error, "message": fault.message, "at": _iso(fault), "detail": fault.detail}


def _iso(fault: Fault | None) -> str | None:
    return None if fault is None else datetime.fromtimestamp(fault.at_s, UTC).isoformat(timespec="seconds")
