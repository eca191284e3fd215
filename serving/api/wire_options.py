"""What only some workers take or serve: refused by name where the one that is asked does not, before anything
is called.
"""

from collections.abc import Callable, Container, Iterable

from conductor.errors import BadTask, quote
from conductor.model.operation import WireOptions
from conductor.model.pool_member import PoolMember
from conductor.run.task import Task
from serving.api.request import ApiRequest
from serving.pool import Pool

PATHS = {"chat": "/v1/chat/completions", "text_completion": "/v1/completions", "embeddings": "/v1/embeddings"}
FIELDS = {name: name for name in WireOptions.__dataclass_fields__} | {"top_logprobs": "logprobs"}
"""What callers of Chat Completions call each option."""


def check_operation(request: ApiRequest, pool: Pool, allowed: Callable[[], Container[str]]) -> None:
    """Whether the name that `request` asks for can be asked for that.

    Args:
        request: that asks.
        pool: who is there.
        allowed: gives the names that the caller may ask.

    Raises:
        BadTask: it cannot; who can is told.
    """
    wanted, name = request.operation, request.model
    member = pool.members.get(name)
    if member is None and wanted == "chat":
        return
    if member is not None and wanted in member.serves:
        if request.podium.plan is not None and wanted != "chat":
            raise BadTask("podium.plan: only a chat has a plan.", param="podium.plan")
        return
    may_ask = allowed()
    able = [each.name for each in pool.members.values() if wanted in each.serves and each.name in may_ask]
    remedy = (
        f"Ask {', '.join(map(quote, able[:5]))}."
        if able
        else "No worker does that you may ask (settings: serves)."
    )
    what = "does not serve" if member else "is no worker, which alone serves"
    raise BadTask(f"model: {quote(name)} {what} {PATHS[wanted]}. {remedy}", param="model")


def check_options(request: ApiRequest, task: Task, members: Iterable[PoolMember]) -> None:
    """Whether everybody who may answer takes the options of the task, which `request` asked for.

    Raises:
        BadTask: naming the field, and who does not.
    """
    asked = task.sampling.options.asked
    if not asked:
        return
    for member in members:
        if left := [name for name in asked if name not in member.takes]:
            raise _not_taken(request, left[0], member.name)


def _not_taken(request: ApiRequest, option: str, worker: str) -> BadTask:
    who = "ask a worker that does by its own name: `podium.takes` of GET /v1/models says which."
    if option == "token_prompt":
        message = f"prompt: {quote(worker)} does not take tokens (`token_prompt`). Send text, or {who}"
        return BadTask(message, param="prompt")
    field = request.logprobs_field if option == "top_logprobs" else FIELDS[option]
    message = f"{field} would change the answer, and {quote(worker)} does not take it. Leave it out, or {who}"
    return BadTask(message, param=field)
