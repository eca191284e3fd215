"""Read the server's records after the load, to complete the samples of answers that were not streamed.

Such an answer does not show when its plan ended and how many calls it needed. The record does.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import Any, cast

from loadtest.recording import OK, Sample
from loadtest.request_options import Json
from loadtest.server_state import fetch_json

AT_MOST = 200
"""Maximum number of records to read, newest first. A server keeps this many in memory."""
CONCURRENT = 4
"""Number of concurrent requests. It is low, because the server may still be recovering from overload."""
WITHIN_S = 20.0
"""Seconds within which all records must be read. After that, the report is written without the others."""


def fill(
    samples: Sequence[Sample], url: str, read: Callable[[str], Any] = fetch_json, within_s: float = WITHIN_S
) -> tuple[int, int]:
    """Complete the newest samples without number of calls, until Ctrl-C. Return the records requested and
    found.
    """
    lacking = [each for each in samples if each.outcome == OK and each.calls is None and each.workflow_id]
    lacking = lacking[-AT_MOST:]
    pool, n_found = ThreadPoolExecutor(CONCURRENT), 0
    reads: dict[Future[Any], Sample] = {}
    try:
        for sample in reversed(lacking):
            reads[pool.submit(read, f"{url}/v1/workflows/{sample.workflow_id}")] = sample
        for each in as_completed(reads, within_s):
            with suppress(OSError, ValueError):
                n_found += complete(reads[each], each.result())
    except (TimeoutError, KeyboardInterrupt):
        pass
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return len(lacking), n_found


def complete(sample: Sample, record: Any) -> bool:
    """Copy the end of the plan, the last step's start and the calls. Return False if the run is unfinished."""
    if not isinstance(record, dict) or cast(Json, record).get("status") != "finished":
        return False
    record = cast(Json, record)
    plans = [plan for plan in record["plans"] if plan["worker"]]
    started_s = [step["started_s"] for step in record["steps"] if step["started_s"] is not None]
    if plans and plans[0]["ended_s"] is not None:
        sample.phases_ms["plan"] = plans[0]["ended_s"] * 1000
    sample.calls = len(plans) + len(started_s)
    if started_s and sample.calls > 1:
        sample.phases_ms["steps"] = max(started_s) * 1000
    return True
