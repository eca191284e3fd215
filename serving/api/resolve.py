"""Turns a request into a `Task`: which model it names, which limits apply, and which team runs it."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from conductor.errors import BadTask, ContextOverflow, InvalidPlan, Reason, UnknownModel, did_you_mean, quote
from conductor.model.call import Call
from conductor.model.messages import File, Image, Message
from conductor.model.terms import Permit, least
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan, Step
from conductor.plan.prompt_parts import reads
from conductor.run.call_bound import answer_estimate, input_estimate
from conductor.run.events import Source
from conductor.run.ledger import Budget
from conductor.run.steps import may_call_tools
from conductor.run.task import Task
from conductor.run.team import Team
from serving.accounts.account_policy import UNLIMITED, Policies, may_ask, narrow_task, not_kept, permit_of
from serving.api.request import (
    EFFORT_ROUNDS,
    EFFORT_STEPS,
    ApiRequest,
    PlannedStep,
    Podium,
    check_operation,
    check_options,
)
from serving.pool import Pool
from serving.settings.sections import ModelSettings, StepSettings
from serving.settings.settings import Settings
from serving.workers.picture_urls import INLINE

ESTIMATE_FACTOR = 1.5
"""Factor by which the estimated tokens of a prompt may exceed every context before the request is rejected."""
OWN_PLAN_STEPS = 5
"""Limit for the steps of a plan in a request, unless the model allows more."""


@dataclass(frozen=True, slots=True)
class ResolvedTask:
    task: Task
    team: Team
    pool: Pool


def resolve(
    request: ApiRequest,
    pool: Pool,
    policies: Policies = UNLIMITED,
    *,
    plan_only: bool = False,
    fetchers: Collection[str] | None = None,
    prompt_tokens: int | None = None,
) -> ResolvedTask:
    """Turn a request into a task, and choose the team that runs it, both limited by the policies. `fetchers`
    is the result of `find_fetchers`. `prompt_tokens` is the size of the prompt, if it is better known than by
    the texts. Raise UnknownModel, BadTask, NotAllowed or ContextOverflow.
    """
    task, team = _resolve(request, pool, policies, fetchers, prompt_tokens, plan_only=plan_only)
    return ResolvedTask(task, team if fetchers is None else _without_far_pictures(team, fetchers), pool)


def _without_far_pictures(team: Team, fetchers: Collection[str]) -> Team:
    """Return `team` with notes instead of pictures for workers that would reject their URLs."""

    def narrow(member: PoolMember) -> PoolMember:
        if member.name in fetchers:
            return member
        planned = member.planned and narrow(member.planned)
        return dataclasses.replace(member, sees_images=False, planned=planned)

    conductor = team.conductor and dataclasses.replace(team.conductor, member=narrow(team.conductor.member))
    return dataclasses.replace(
        team, conductor=conductor, pool={name: narrow(member) for name, member in team.pool.items()}
    )


def _resolve(
    request: ApiRequest,
    pool: Pool,
    policies: Policies,
    fetchers: Collection[str] | None,
    prompt_tokens: int | None,
    *,
    plan_only: bool,
) -> tuple[Task, Team]:
    settings, podium, name = pool.settings, request.podium, request.model
    model = settings.models.get(name) or ModelSettings()
    permit = check_name(name, pool, policies, has_plan=podium.plan is not None)
    check_operation(request, pool, lambda: find_allowed_names(pool, policies))
    task = _task(request, model, settings.limits.default_deadline_s, plan_only=plan_only)
    task = narrow_task(
        task,
        policies,
        permit,
        settings,
        workers=podium.workers or (),
        excluded=podium.exclude_workers,
        planned=[step.worker for step in podium.plan or ()],
        fixed=[] if podium.plan is not None else _workers_of(name, settings),
        rounds=podium.rounds,
        effort=request.effort,
        keeps="podium.keep" if podium.keep else "podium.background" if podium.background else None,
    )
    if request.n_beside:
        task = replace(task, budget=task.budget.part(request.n_beside + 1))
    team = pool.team_for(task.permit)
    _check_tools(task)
    if podium.plan is not None:
        own = _own_plan(podium.plan, team, task, _own_steps(podium, model))
        return _check_given_plan(request, team, task, own, "client", fetchers)
    if name in settings.models:
        task = _fit_context(task, team.members_for(task), pool, prompt_tokens)
        members = team.members_for(task)
        task = _fit_tools(task, [(Step(each, ""), member) for each, member in members.items()])
        _check_attachments(request, members.values(), fetchers)
        check_options(request, task, members.values())
        return task, team
    if name in settings.workflows:
        fixed = _workflow_plan(settings.workflows[name])
        if podium.max_steps is not None and podium.max_steps < len(fixed.steps):
            message = f"The workflow {name!r} has {len(fixed.steps)} steps, but podium.max_steps is {podium.max_steps}. Raise or remove it."
            raise BadTask(message, param="podium.max_steps")
        return _check_given_plan(request, pool.whole_pool_team, task, fixed, "workflow", fetchers)
    alone = Plan((Step(name, ""),))
    return _check_given_plan(request, pool.whole_pool_team, task, alone, "worker", fetchers)


def _fit_context(
    task: Task, members: Mapping[str, PoolMember], pool: Pool, prompt_tokens: int | None
) -> Task:
    """Return `task` without the workers whose context is too short for the prompt and the answer.

    If all are too short, those with the longest context remain, because the number of tokens is an estimate. Raise
    ContextOverflow if the prompt is much longer than that.
    """
    limits = {name: limit for name in members if (limit := pool.context_tokens.get(name)) is not None}
    if not limits:
        return task
    tokens = prompt_tokens
    if tokens is None:
        tokens = input_estimate(Call(task.conversation, tools=task.tools, answer_format=task.answer_format))

    def fits(member: PoolMember) -> bool:
        return tokens + answer_estimate(member, task.sampling) <= limits.get(member.name, inf)

    fitting = [name for name, member in members.items() if fits(member)]
    if len(fitting) == len(members):
        return task
    longest = max(limits.values())
    if not fitting and tokens > ESTIMATE_FACTOR * longest:
        message = (
            f"The conversation has about {tokens:,} tokens, but the largest context of the workers that may answer is "
            f"{longest:,} tokens. Shorten the conversation."
        )
        raise ContextOverflow(message)
    return replace(task, workers=tuple(fitting or (name for name in limits if limits[name] == longest)))


def _check_tools(task: Task) -> None:
    """Check that a run with tools may be stored, as it must be while it waits, or raise NotAllowed."""
    if task.tools and not task.permit.stores:
        raise not_kept("tools")


def names(pool: Pool) -> dict[str, str]:
    """Return every name that `model` accepts, with its kind."""
    return (
        dict.fromkeys(pool.settings.models, "conductor")
        | dict.fromkeys(pool.settings.workflows, "workflow")
        | dict.fromkeys(pool.members, "worker")
    )


def find_allowed_names(pool: Pool, policies: Policies) -> dict[str, str]:
    """Return the names that the caller may use, with their kinds."""
    permit = permit_of(policies, pool.settings)
    return {name: kind for name, kind in names(pool).items() if _may_ask(name, pool, policies, permit)}


def check_name(name: str, pool: Pool, policies: Policies, *, has_plan: bool = False) -> Permit:
    """Check that the caller may use a name, and return its permit. With `has_plan`, no conductor is needed.
    Raise UnknownModel for other names.
    """
    is_known = any(name in group for group in (pool.settings.models, pool.settings.workflows, pool.members))
    permit = permit_of(policies, pool.settings)
    if is_known and _may_ask(name, pool, policies, permit, has_plan=has_plan):
        return permit
    own = [each for each, kind in find_allowed_names(pool, policies).items() if kind == "conductor"]
    hint = did_you_mean(name, find_allowed_names(pool, policies))
    suggestion = hint or (f" Try {', '.join(own)}." if own else "")
    message = f"The model {quote(name)} does not exist, or this API key may not use it.{suggestion} GET /v1/models lists all names."
    raise UnknownModel(message)


def _may_ask(name: str, pool: Pool, policies: Policies, permit: Permit, *, has_plan: bool = False) -> bool:
    settings = pool.settings
    if not may_ask(name, () if has_plan else _workers_of(name, settings), policies, permit):
        return False
    return has_plan or name not in settings.models or pool.may_plan(permit)


def _workers_of(name: str, settings: Settings) -> list[str]:
    """Return the workers of a workflow, or the worker itself, or none for a model, whose conductor chooses."""
    if name in settings.models:
        return []
    return [step.worker for step in settings.workflows.get(name, ())] or [name]


def _check_given_plan(
    request: ApiRequest, team: Team, task: Task, plan: Plan, source: Source, fetchers: Collection[str] | None
) -> tuple[Task, Team]:
    """Return a task with a fixed plan, and its team. Raise BadTask if its workers are excluded or cannot serve it."""
    team.members_for(task)
    used = tuple(dict.fromkeys(step.worker for step in plan.steps))
    allowed = used if task.workers is None else task.workers
    for field, forbidden_names in (
        ("exclude_workers", set(task.exclude_workers)),
        ("workers", {*used} - {*allowed}),
    ):
        if needed := forbidden_names.intersection(used):
            message = f"The plan uses worker {min(needed)!r}, which podium.{field} does not allow."
            raise BadTask(message, param=f"podium.{field}")
    workers = task.workers if source == "client" else used
    planned_task = replace(task, plan=plan, plan_source=source, workers=workers)
    members = team.members_for(planned_task)
    answering = plan.steps[-1:] if task.tools.is_forced else plan.steps
    planned_task = _fit_tools(planned_task, [(step, members[step.worker]) for step in answering])
    _check_attachments(request, [members[name] for name in used], fetchers)
    check_options(request, task, [members[step.worker] for step in plan.steps])
    return planned_task, team


def _fit_tools(task: Task, steps: Iterable[tuple[Step, PoolMember]]) -> Task:
    """Return `task`, with a note if no step can call tools. Raise BadTask if the request requires a call."""
    if not task.tools or any(may_call_tools(step, member) for step, member in steps):
        return task
    if task.tools.is_forced:
        message = (
            "tool_choice: no worker that may answer this request can call tools. Use one whose `podium.calls_tools` is "
            "not false in GET /v1/models, or remove `tools` and `tool_choice`."
        )
        raise BadTask(message, param="tool_choice")
    note = (
        "tools were ignored, because no worker that may answer this request can call tools (`calls_tools`)."
    )
    return replace(task, left_out=(*task.left_out, note))


async def find_fetchers(request: ApiRequest, pool: Pool) -> frozenset[str] | None:
    """Return the workers that may get the URLs of the request's pictures, or None without any."""
    images = [part for _, part in _attachments(request) if isinstance(part, Image)]
    urls = [part.url for part in images if not part.url.startswith(INLINE)]
    return await pool.find_fetchers(urls) if urls else None


def _check_attachments(
    request: ApiRequest, members: Collection[PoolMember], fetchers: Collection[str] | None
) -> None:
    """Check that some member can read each picture and file, so that none is dropped. `param` names the
    field.
    """
    for place, part in _attachments(request):
        able = [member for member in members if reads(member, part)]
        if able and not _is_fetched(part, able, fetchers):
            place = f"{place}.image_url" if place.endswith("]") and not request.places else place
            message = (
                f"{place}: no worker that may answer this request can fetch images from {quote(urlsplit(part.url).hostname or '')}. "
                "Send the image itself as data:image/...;base64,...."
            )
            raise BadTask(message, param=place)
        if able:
            continue
        what, fact = ("see images", "sees_images") if isinstance(part, Image) else ("read PDFs", "reads_pdfs")
        message = (
            f"{place}: no worker that may answer this request can {what}. "
            f"Use one whose `podium.{fact}` is true in GET /v1/models, or send text."
        )
        raise BadTask(message, param=place)


def _is_fetched(part: Image | File, members: Iterable[PoolMember], fetchers: Collection[str] | None) -> bool:
    """Return whether a member may get the URL of `part`. Return True if there is no URL to fetch."""
    if fetchers is None or not isinstance(part, Image) or part.url.startswith(INLINE):
        return True
    return any(member.name in fetchers for member in members)


def _attachments(request: ApiRequest) -> Iterator[tuple[str, Image | File]]:
    """Yield each picture and file, with the request field that it is in."""
    for index, message in enumerate(request.conversation):
        for number, part in enumerate(message.parts):
            for each in Message(message.role, (part,)).all_parts:
                if isinstance(each, Image | File):
                    yield request.place(index, number), each


def _task(request: ApiRequest, model: ModelSettings, default_deadline_s: float, *, plan_only: bool) -> Task:
    podium, effort = request.podium, request.effort
    steps = [model.max_steps, podium.max_steps, EFFORT_STEPS[effort] if effort else None]
    rounds = podium.rounds or model.rounds + (EFFORT_ROUNDS.get(effort, 0) if effort else 0)
    workers = podium.workers if podium.workers is not None else model.workers
    is_model = effort is not None and request.podium.plan is None
    return Task(
        conversation=request.conversation,
        model=request.model,
        sampling=replace(request.sampling, effort=effort if is_model else None),
        stream=request.stream,
        workers=None if workers is None else tuple(workers),
        workers_by_server=podium.workers is None,
        exclude_workers=tuple(podium.exclude_workers),
        max_steps=min(step for step in steps if step is not None),
        rounds=rounds,
        depth=model.depth,
        budget=Budget(
            least(podium.max_cost_usd, model.max_cost_usd), least(podium.max_tokens, model.max_tokens)
        ),
        deadline_s=least(podium.deadline_s, model.deadline_s) or default_deadline_s,
        plan_only=plan_only,
        tools=request.tools,
        answer_format=request.answer_format,
        operation=request.operation,
        priority=request.priority,
        on_step_failure=podium.on_step_failure or model.on_step_failure,
        left_out=request.left_out,
        echo=request.echo,
    )


def _own_steps(podium: Podium, model: ModelSettings) -> int:
    limit = max(OWN_PLAN_STEPS, model.max_steps)
    return min(podium.max_steps or limit, limit)


def _own_plan(requested_steps: list[PlannedStep], team: Team, task: Task, limit: int) -> Plan:
    steps = [
        Step(step.worker, step.subtask, _access(step.access, index), step.needs, step.tools, step.on_failure)
        for index, step in enumerate(requested_steps)
    ]
    try:
        return Plan.of(steps, team.members_for(task), limit)
    except InvalidPlan as exc:
        field = "" if exc.step is None else f"[{exc.step}]"
        hint = ""
        if exc.reason is Reason.UNKNOWN_WORKER and exc.step is not None:
            hint = did_you_mean(requested_steps[exc.step].worker, team.members_for(task))
        raise BadTask(
            f"podium.plan{field}: {exc.message}{hint}", param=f"podium.plan{field}", detail=exc.detail
        ) from exc


def _workflow_plan(steps: tuple[StepSettings, ...]) -> Plan:
    return Plan(
        tuple(
            Step(s.worker, s.subtask, _access(s.access, index), tools=s.tools, on_failure=s.on_failure)
            for index, s in enumerate(steps)
        )
    )


def _access(access: Iterable[int] | Literal["all"], index: int) -> tuple[int, ...]:
    return tuple(range(index)) if isinstance(access, str) else tuple(access)
