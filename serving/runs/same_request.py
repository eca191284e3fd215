"""When two requests ask the same, and when the first one cost something. Knows neither whose key asks nor what is kept."""

import hashlib
import json
from dataclasses import replace

from conductor.model.messages import without_cache_marks
from conductor.plan.volatile_lines import with_stable_system
from conductor.run import codec
from conductor.run.record import Record
from conductor.run.task import Task


def hash_task(task: Task, settings: str = "") -> str:
    """The same for tasks that ask the same. Whether the answer is streamed makes no difference, nor what is said for a
    provider's prompt cache; what it repeats of the request does, such as whose it is and which conversation it belongs to.

    Args:
        task: what is asked.
        settings: what stands for those by which it is answered; empty: they make no difference.
    """
    tools = replace(task.tools, tools=tuple(replace(tool, cache="") for tool in task.tools.tools))
    options = replace(task.sampling.options, prompt_cache=None)
    content = codec.dump(
        replace(
            task,
            conversation=without_cache_marks(with_stable_system(task.conversation)),
            sampling=replace(task.sampling, options=options),
            tools=tools,
            stream=True,
            left_out=(),
        )
    )
    words = json.dumps([settings, content] if settings else content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


def has_called(record: Record) -> bool:
    """Whether a model was at work for it, so that asked again it would be paid again: what it took may not be known."""
    is_paid = bool(record.usage.total_tokens or record.cost_usd)
    return is_paid or any(True for _ in record.unmetered_calls)
