"""What a whole answer does not tell (its plan, its calls), from the records that the server keeps. Asked once the load is over."""

from collections.abc import Callable, Sequence
from typing import Any

from loadtest.recording import OK, Sample
from loadtest.server_state import fetched

AT_MOST = 200
"""The newest; a server keeps so many in memory, and each is a request."""


def fill(samples: Sequence[Sample], url: str, read: Callable[[str], Any] = fetched) -> tuple[int, int]:
    """Complete the newest answers that lack their calls.

    Returns:
        How many records were looked for, and how many found: a router replica knows its own runs only.
    """
    lacking = [each for each in samples if each.outcome == OK and each.calls is None and each.workflow_id]
    found = 0
    for sample in lacking[-AT_MOST:]:
        try:
            record = read(f"{url}/v1/workflows/{sample.workflow_id}")
        except (OSError, ValueError):
            continue
        found += complete(sample, record)
    return len(lacking[-AT_MOST:]), found


def complete(sample: Sample, record: dict[str, Any]) -> bool:
    """Take over the plan's end, the last step's begin and the calls; False where it is no finished record."""
    if record.get("status") != "finished":
        return False
    plans = [plan for plan in record["plans"] if plan["worker"]]
    started_s = [step["started_s"] for step in record["steps"] if step["started_s"] is not None]
    if plans and plans[0]["ended_s"] is not None:
        sample.phases_ms["plan"] = plans[0]["ended_s"] * 1000
    sample.calls = len(plans) + len(started_s)
    if started_s and sample.calls > 1:
        sample.phases_ms["steps"] = max(started_s) * 1000
    return True
