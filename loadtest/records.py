"""What a whole answer does not tell (its plan, its calls), from the records that the server keeps. Asked once the load is over."""

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from loadtest.recording import OK, Sample
from loadtest.server_state import fetched

AT_MOST = 200
"""The newest; a server keeps so many in memory, and each is a request."""
AT_ONCE = 4
"""A server that comes out of overload is not overloaded again."""
WITHIN_S = 20.0
"""For all of them together; then the report is written without the rest."""


def fill(
    samples: Sequence[Sample], url: str, read: Callable[[str], Any] = fetched, within_s: float = WITHIN_S
) -> tuple[int, int]:
    """Complete the newest answers that lack their calls, the newest first; Ctrl-C ends it early.

    Returns:
        How many records were looked for, and how many found: a router replica knows its own runs only.
    """
    lacking = [each for each in samples if each.outcome == OK and each.calls is None and each.workflow_id]
    lacking = lacking[-AT_MOST:]
    read_records: SimpleQueue[tuple[Sample, Any]] = SimpleQueue()
    left, over, found = lacking.copy(), threading.Event(), 0

    def ask() -> None:
        while not over.is_set():
            try:
                sample = left.pop()
            except IndexError:
                return
            try:
                read_records.put((sample, read(f"{url}/v1/workflows/{sample.workflow_id}")))
            except (OSError, ValueError):
                read_records.put((sample, None))

    until = time.monotonic() + within_s
    try:
        for _ in range(min(AT_ONCE, len(lacking))):
            threading.Thread(
                target=ask, daemon=True
            ).start()  # one that waits for a mute server holds nobody up
        for _ in lacking:
            sample, record = read_records.get(timeout=max(0.0, until - time.monotonic()))
            found += complete(sample, record)
    except (Empty, KeyboardInterrupt):
        over.set()
    return len(lacking), found


def complete(sample: Sample, record: Any) -> bool:
    """Take over the plan's end, the last step's begin and the calls; False where it is no finished record."""
    if not isinstance(record, dict) or record.get("status") != "finished":
        return False
    plans = [plan for plan in record["plans"] if plan["worker"]]
    started_s = [step["started_s"] for step in record["steps"] if step["started_s"] is not None]
    if plans and plans[0]["ended_s"] is not None:
        sample.phases_ms["plan"] = plans[0]["ended_s"] * 1000
    sample.calls = len(plans) + len(started_s)
    if started_s and sample.calls > 1:
        sample.phases_ms["steps"] = max(started_s) * 1000
    return True
