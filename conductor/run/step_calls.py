"""What a step's worker is asked: prompt, tools, and how the answer is sampled. Whether and when it is asked is `plan_run.py`'s."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from conductor.model.call import Call
from conductor.model.field_values import copy_with
from conductor.model.messages import Message
from conductor.model.pool_member import PoolMember
from conductor.model.tools import AUTO, NO_TOOLS, Toolset
from conductor.plan.plan import Step
from conductor.plan.prompts import WorkerPrompt, work
from conductor.plan.tool_text import with_tools_as_text
from conductor.run.run_context import RunContext
from conductor.run.step_words import StepWords

TOOLLESS_NOTE = "The client's tools were left out: this worker calls none (calls_tools)."


def may_call_tools(step: Step, member: PoolMember) -> bool:
    """Return whether a step's call may offer the client's tools to its worker."""
    return step.tools and member.calls_tools is not False


class StepCalls:
    """The calls of one plan's steps.

    Args:
        context: of the run.
        plan: its index.
        words: tells which step is the last.
    """

    def __init__(self, context: RunContext, plan: int, words: StepWords) -> None:
        self._context, self._plan, self._words = context, plan, words

    def prompt(
        self, member: PoolMember, step: Step, steps: Sequence[Step], outputs: Mapping[int, str]
    ) -> WorkerPrompt:
        """What the worker is shown; what is no chat, as it stands."""
        task = self._context.task
        if task.operation != "chat":
            return WorkerPrompt(task.conversation)
        return work(member, self._conversation, step, steps, outputs)

    async def call(
        self, index: int, step: Step, steps: Sequence[Step], messages: tuple[Message, ...]
    ) -> Call:
        """A step's call, with what the user asked of the answer.

        Any step may turn out to be the last, so all take the user's sampling. Only `stop` would cut inner
        work in half: it is for the answer alone, so a request that has it lets its steps begin once the
        plan's text has ended.

        Args:
            index: the step's.
            step: whose call it is.
            steps: all that are written so far.
            messages: what its worker is shown.
        """
        task = self._context.task
        sampling, wanted = task.sampling, task.answer_format
        is_for_answer = bool(sampling.stop or wanted)
        if is_for_answer and index != await self._words.find_last():
            sampling, wanted = copy_with(sampling, stop=()), None
        is_last_yet = index == len(steps) - 1  # a step before another is not the last
        is_streamed = task.stream and self._words.live and is_last_yet
        site = self._context.site(self._plan, index, step.access, task.operation)
        tools = await self._toolset(index, step)
        return self._context.call(
            messages, site, sampling, coalesce=not is_streamed, tools=tools, answer_format=wanted
        )

    def tools_left_out(self, step: Step) -> tuple[str, ...]:
        """Return a note for the record if the step's worker is offered no tools because it calls none."""
        is_left_out = self._context.task.tools and step.tools
        return (
            (TOOLLESS_NOTE,)
            if is_left_out and not may_call_tools(step, self._context.pool[step.worker])
            else ()
        )

    @property
    def _conversation(self) -> Sequence[Message]:
        """The user's, as workers are shown it: calls of tools in it are those of others, and words to them;
        but where one worker answers alone under its own name.
        """
        conversation = self._context.task.conversation
        is_plain = self._context.log.record.plans[self._plan].source == "worker"
        return conversation if is_plain else with_tools_as_text(conversation)

    async def _toolset(self, index: int, step: Step) -> Toolset:
        """The tools of a step's call. That one must be called is for the answering step alone, and until it
        has: a request that says so lets its steps begin once the plan's text has ended.
        """
        tools, plan = self._context.task.tools, self._context.log.record.plans[self._plan]
        if not tools or not may_call_tools(step, self._context.pool[step.worker]):
            return NO_TOOLS
        if tools.choice.mode != "required" or plan.source == "worker":
            return tools
        is_last = index == await self._words.find_last()
        has_called = bool(self._context.log.record.plans[self._plan].steps[index].turns)
        return tools if is_last and not has_called else replace(tools, choice=AUTO)
