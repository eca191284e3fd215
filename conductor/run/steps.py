"""Prompts and calls of a plan's steps, and delivery of their text."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.messages import AUTO, NO_TOOLS, Message, ToolResult, Toolset
from conductor.model.reply import Reply
from conductor.model.worker import PoolMember
from conductor.plan.plan import Step
from conductor.plan.prompts import WorkerPrompt, with_tools_as_text, work
from conductor.run.events import AnswerDelta, RunFailed, Source
from conductor.run.partial_answer import other_answer
from conductor.run.run import RunContext
from conductor.run.turns import ClientReply, GivenResult, StepTurn


class StepWords:
    """Delivery of the text of one plan's steps.

    Args:
        live: whether the last step's text streams to the client.
    """

    def __init__(self, context: RunContext, plan: int, *, live: bool) -> None:
        self.live = live
        self.stopped = asyncio.Lock()
        """Lock that stops the answer: while it is held, no text of the answer is sent."""
        self._context, self._plan = context, plan
        self._last: int | None = None
        self._is_decided = asyncio.Event()
        self._waiting: dict[int, list[AnswerDelta]] = {}

    async def find_last(self) -> int:
        """Wait until the plan's text has ended, and return the last step's index."""
        await self._is_decided.wait()
        assert self._last is not None
        return self._last

    async def decide(self, last: int) -> None:
        """Set the answering step after the plan's text has ended, and publish the text of that step so far."""
        async with self.stopped:
            self._last = last
            self._is_decided.set()
            for delta in self._waiting.pop(last, []):
                await self._context.log.append_piece(replace(delta, at_s=self._context.now_s()))
            self._waiting.clear()

    def are_seen(self, index: int) -> bool:
        """Return whether the client has received some of the step's text."""
        return index == self._last and self._context.log.is_answer_seen

    @property
    def may_change(self) -> bool:
        """True if the client has a part of the answer, but receives a new answer with its next request."""
        return self._context.task.may_change and self._context.log.record.parent is None

    def drop(self, index: int) -> None:
        """Discard a step's text so far, because the step starts again."""
        self._waiting.pop(index, None)

    def end_answer(self) -> None:
        """End the answer for the client with an error, because a new answer will replace it."""
        self._context.log.end_answer(RunFailed(self._context.now_s(), Failure.of(other_answer())))

    async def read(self, index: int, reply: Reply) -> None:
        """Publish a step's text as it streams. Raise WorkerUnavailable if the stream broke."""
        async with aclosing(aiter(reply)) as deltas:
            async for delta in deltas:
                now_s = self._context.now_s()
                if not (self.live and index == self._last):  # the answer is published
                    self._context.log.note_work(now_s, self._plan, index, delta, reply)
                if self.live and (delta.text or delta.reasoning):
                    await self._show(index, AnswerDelta(now_s, delta.text, delta.reasoning, delta.logprobs))

    async def _show(self, index: int, delta: AnswerDelta) -> None:
        if self._last not in (None, index):
            return
        if self._last == index and not self.stopped.locked() and self._context.log.offer_piece(delta):
            return  # most pieces: nothing holds the answer back
        async with self.stopped:
            if self._last is None:
                self._waiting.setdefault(index, []).append(delta)
            elif self._last == index:
                await self._context.log.append_piece(delta)


TOOLLESS_NOTE = "The client's tools were not offered, because this worker cannot call tools (`calls_tools`)."


def may_call_tools(step: Step, member: PoolMember) -> bool:
    """Return whether a step's call may offer the client's tools to its worker."""
    return step.tools and member.calls_tools is not False


class StepCalls:
    """Builds the calls of one plan's steps. `words` determines which one is the last."""

    def __init__(self, context: RunContext, plan: int, words: StepWords) -> None:
        self._context, self._plan, self._words = context, plan, words

    def prompt(
        self, member: PoolMember, step: Step, steps: Sequence[Step], outputs: Mapping[int, str]
    ) -> WorkerPrompt:
        """Return the worker's prompt. If the operation is not a chat, return the conversation unchanged."""
        task = self._context.task
        if task.operation != "chat":
            return WorkerPrompt(task.conversation)
        return work(member, self._conversation(step, member), step, steps, outputs)

    async def call(
        self, index: int, step: Step, steps: Sequence[Step], messages: tuple[Message, ...]
    ) -> Call:
        """Return the call for a step, with the user's requirements for the answer.

        Any step may be the last one, so all steps use the user's sampling. `stop` and the answer format apply
        only to the last step. If a request sets one of them, its steps wait until the plan's text has ended.
        """
        task = self._context.task
        sampling, answer_format = task.sampling, task.answer_format
        is_for_answer = bool(sampling.stop or answer_format)
        if is_for_answer and self._source != "conversation" and index != await self._words.find_last():
            sampling, answer_format = replace(sampling, stop=()), None
        is_last_yet = index == len(steps) - 1  # a step before another is not the last
        is_streamed = task.stream and self._words.live and is_last_yet
        site = self._context.site(self._plan, index, step.access, task.operation)
        tools = await self._toolset(index, step)
        return self._context.call(
            messages, site, sampling, coalesce=not is_streamed, tools=tools, answer_format=answer_format
        )

    def tools_left_out(self, step: Step) -> tuple[str, ...]:
        """Return a note for the record if the step's worker cannot call tools and therefore received none."""
        is_left_out = self._context.task.tools and step.tools
        return (
            (TOOLLESS_NOTE,)
            if is_left_out and not may_call_tools(step, self._context.pool[step.worker])
            else ()
        )

    @property
    def _source(self) -> Source:
        return self._context.log.record.plans[self._plan].source

    def _conversation(self, step: Step, member: PoolMember) -> Sequence[Message]:
        """Return the conversation as the step's worker receives it, with tool calls as text unless the step may
        call tools. Only the worker of a request by name gets the thoughts that the client sent back.
        """
        task = self._context.task
        conversation = as_sent(task.conversation, self._context.earlier_turns)
        if self._source == "worker":
            return conversation
        if not task.tools or not may_call_tools(step, member):
            return with_tools_as_text(conversation)
        return [replace(each, thoughts={}) if each.thoughts else each for each in conversation]

    async def _toolset(self, index: int, step: Step) -> Toolset:
        """Return a step's tools. Only the answering step must make a required tool call, and only once, so
        the steps wait for the plan's end.
        """
        tools = self._context.task.tools
        if not tools or not may_call_tools(step, self._context.pool[step.worker]):
            return NO_TOOLS
        if tools.choice.mode != "required" or self._source == "worker":
            return tools
        is_last = self._source == "conversation" or index == await self._words.find_last()
        has_called = bool(self._context.log.record.plans[self._plan].steps[index].turns)
        return tools if is_last and not has_called else replace(tools, choice=AUTO)


def as_sent(conversation: Sequence[Message], earlier_turns: Mapping[str, StepTurn]) -> Sequence[Message]:
    """Return `conversation` with the tool turns of earlier runs as their workers received them.

    Providers cache and sign what they received: their own ids, thoughts and arguments. Clients send other ids, and may
    write arguments again. The results remain the client's. A message with calls of several turns, or with a part of
    the calls of a turn, is not changed.

    Args:
        conversation: messages of the client.
        earlier_turns: see `Team.earlier_turns`.
    """
    if not earlier_turns:
        return conversation
    ids = defaultdict[int, list[str]](list)
    for client_id, turn in earlier_turns.items():
        ids[id(turn)].append(client_id)
    messages: list[Message] = []
    rest = deque(conversation)
    while rest:
        message = rest.popleft()
        calls = [call.id for call in message.tool_calls]
        turn = earlier_turns.get(calls[0]) if calls else None
        if turn is None or len(calls) != len(turn.calls) or set(calls) != set(ids[id(turn)]):
            messages.append(message)
            continue
        results: list[ToolResult] = []
        while rest and rest[0].role == "tool" and {each.id for each in rest[0].tool_results} <= set(calls):
            results += rest.popleft().tool_results
        numbers = dict(zip(ids[id(turn)], (each.number for each in turn.calls), strict=True))
        client_reply = ClientReply(tuple(GivenResult(numbers[each.id], each) for each in results))
        restored, answered, *_ = replace(turn, results=(), said=()).after(client_reply).messages
        messages += [_with_mark_of(message, restored), *([answered] if results else [])]
    return messages


def _with_mark_of(message: Message, restored: Message) -> Message:
    """Return `restored` with the client's cache mark of `message` at its end, if it has one."""
    mark = next((part.cache for part in reversed(message.parts) if part.cache), "")
    *parts, last = restored.parts
    return replace(restored, parts=(*parts, replace(last, cache=mark))) if mark else restored
