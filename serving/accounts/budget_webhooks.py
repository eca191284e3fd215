"""Webhooks for budgets: poll the store for alerts every few seconds, sign them, and post them.

An alert that was not delivered is sent again with growing pauses, for about three days.
"""

import asyncio
import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import httpx2
from standardwebhooks.webhooks import Webhook

from conductor.errors import StoreUnavailable
from conductor.run.run import end_task
from serving.accounts.alerts import Alert, notice, put_off, take_due
from serving.accounts.hold import EPOCH, Period
from serving.accounts.money import to_usd
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.egress.client import open_client
from serving.egress.reach import SETTINGS, AddressForbidden
from serving.settings.webhooks import SecretError, WebhookSettings, signers

logger = logging.getLogger("podium")

LOOK_S = 5.0
"""Seconds between two checks of the budgets."""
WAITS_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds between attempts, as Standard Webhooks proposes. Their sum is about three days."""
JITTER = 0.2
GONE = 410
"""HTTP status by which a receiver rejects all further attempts for an alert."""
KIND = "budget.threshold_reached"


class BudgetWebhooks:
    """Sender of budget webhooks on one replica. Replicas share the state of delivery in the store.

    Args:
        look_s: seconds between two checks of the budgets.
        waits_s: seconds between the attempts to deliver an alert.
    """

    def __init__(
        self,
        store: ReplicaStore,
        settings: Callable[[], WebhookSettings],
        environment: Mapping[str, str],
        look_s: float = LOOK_S,
        waits_s: Sequence[float] = WAITS_S,
    ) -> None:
        self._store, self._settings, self._environment = store, settings, environment
        self._look_s, self._waits_s = look_s, waits_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to check the budgets periodically."""
        if self._task is None:
            self._task = asyncio.create_task(self._look_on(), name="webhooks of budgets")

    async def aclose(self) -> None:
        """Stop checking the budgets. If the delivery of an alert was interrupted, another replica repeats it."""
        task, self._task = self._task, None
        await end_task(task)

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self._look_s * random.uniform(0.8, 1.2))
            with suppress(StoreUnavailable, StoreError):  # already logged by the store's writer
                await self.poll()

    async def poll(self) -> int:
        """Record alerts for the spending, send those that are due, and return their number, delivered or not."""
        settings = self._settings()
        if settings.url is None or not settings.budget_percent or not self._store.address.may_hold_something:
            return 0
        try:
            signing = signers(settings, self._environment)
        except SecretError as exc:  # also checked when the settings were loaded
            logger.error("Budget webhooks are not sent: %s", exc)
            return 0
        database = await self._store.database()
        await notice(database, settings.budget_percent)
        lease_us = int((settings.timeout_s + 30) * 1e6)
        due = await take_due(database, settings.budget_percent, lease_us)
        if due:
            async with open_client(SETTINGS, settings.timeout_s, use_proxies=True) as http:
                await asyncio.gather(*(self._send(http, settings.url, signing, alert) for alert in due))
        return len(due)

    async def _send(
        self, http: httpx2.AsyncClient, url: str, signing: Sequence[Webhook], alert: Alert
    ) -> None:
        id, content = message_id(alert), json.dumps(body(alert))
        try:
            async with asyncio.timeout(self._settings().timeout_s):
                signed = headers(id, content, signing)
                async with http.stream("POST", url, content=content, headers=signed) as answer:
                    pass  # only the status is read
            outcome, is_taken = f"{answer.status_code}", answer.is_success
            is_gone = answer.status_code == GONE
        except (AddressForbidden, httpx2.HTTPError, httpx2.InvalidURL, OSError, TimeoutError) as exc:
            outcome, is_taken, is_gone = type(exc).__name__, False, False
        next_us: int | None = None
        if not is_taken and not is_gone and alert.tries <= len(self._waits_s):
            wait_s = self._waits_s[alert.tries - 1] * random.uniform(1 - JITTER, 1 + JITTER)
            next_us = time.time_ns() // 1000 + int(wait_s * 1e6)
        if not is_taken:
            then = "giving up" if next_us is None else "it will be sent again"
            logger.warning("Webhook %s was not delivered (%s); %s", id, outcome, then)
        await put_off(await self._store.database(), alert, next_us)


def headers(id: str, content: str, signing: Sequence[Webhook]) -> dict[str, str]:
    """Return the Standard Webhooks headers for the current time, with a signature for each secret."""
    at = datetime.now(UTC)
    return {
        "content-type": "application/json",
        "webhook-id": id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(each.sign(id, at, content) for each in signing),
    }


def message_id(alert: Alert) -> str:
    """Return the webhook id of an alert. It is the same for each attempt, so receivers can drop duplicates."""
    words = f"{'/'.join(map(str, alert.window))}/{alert.percent}/{alert.made_us}"
    return f"msg_{hashlib.sha256(words.encode()).hexdigest()[:32]}"


def body(alert: Alert) -> dict[str, object]:
    """Return the webhook's payload. Amounts of money are strings, so that no precision is lost."""
    kind, _, id = alert.window.subject.partition(":")
    return {
        "type": KIND,
        "timestamp": (EPOCH + timedelta(microseconds=alert.made_us)).isoformat(),
        "data": {
            "subject": {"kind": kind, "id": id, "name": alert.name},
            "period": alert.window.period,
            "window": _window(alert.window.period, alert.window.starts),
            "percent": alert.percent,
            "limit_usd": f"{to_usd(alert.cap):f}",
            "spent_usd": f"{to_usd(alert.spent):f}",
        },
    }


def _window(period: Period, starts: int) -> str:
    if period == "day":
        return (EPOCH + timedelta(days=starts)).date().isoformat()
    return f"{1970 + starts // 12}-{starts % 12 + 1:02d}"
