"""What the steps of a plan say, and who hears it: the last step's words are the answer, the others' are for who looks on.

Which step is the last is known when the plan's text ends; until then the words of each wait. Knows nothing of calls.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace

from conductor.model.failure import Failure
from conductor.model.reply import Delta, Reply
from conductor.run.continuing import other_answer
from conductor.run.events import AnswerDelta, RunFailed, WorkDelta
from conductor.run.run_context import RunContext


class StepWords:
    """The words of one plan's steps.

    Args:
        context: of the run.
        plan: its index.
        live: whether the last step's words go to the client as they come.
    """

    def __init__(self, context: RunContext, plan: int, *, live: bool) -> None:
        self.live = live
        self.stopped = asyncio.Lock()
        """While it is held, no word of the answer goes out."""
        self._context, self._plan = context, plan
        self._last: int | None = None
        self._is_decided = asyncio.Event()
        self._waiting: dict[int, list[AnswerDelta]] = {}
        self._told = set[int]()
        """Steps whose words who looks on has had so far."""

    async def find_last(self) -> int:
        """The last step's index, once the plan's text has ended."""
        await self._is_decided.wait()
        assert self._last is not None
        return self._last

    async def decide(self, last: int) -> None:
        """The text has ended, and `last` is the answering step: show what it has said by now."""
        async with self.stopped:
            self._last = last
            self._is_decided.set()
            for delta in self._waiting.pop(last, []):
                await self._context.log.append_delta(replace(delta, at_s=self._context.now_s()))
            self._waiting.clear()

    def are_seen(self, index: int) -> bool:
        """Whether the client has seen some of what the step says."""
        return index == self._last and self._context.log.is_answer_seen

    @property
    def may_change(self) -> bool:
        """Whether another answer may follow one that the client has seen some of: it reads it when it asks again."""
        return self._context.task.may_change and self._context.log.record.parent is None

    def drop(self, index: int) -> None:
        """Forget what a step has said so far: it says it again."""
        self._waiting.pop(index, None)

    def end_answer(self) -> None:
        """Tell the client that what it has seen goes on no further, and another answer is being written."""
        self._context.log.end_answer(RunFailed(self._context.now_s(), Failure.of(other_answer())))

    async def read(self, index: int, reply: Reply) -> None:
        """Show what a step says as it comes.

        Raises:
            WorkerUnavailable: the stream broke.
        """
        async with aclosing(aiter(reply)) as deltas:
            async for delta in deltas:
                if self._context.log.is_watched:
                    self._tell(index, reply, delta)
                if self.live and (delta.text or delta.reasoning):
                    now_s = self._context.now_s()
                    await self._show(index, AnswerDelta(now_s, delta.text, delta.reasoning, delta.logprobs))

    def _tell(self, index: int, reply: Reply, delta: Delta) -> None:
        """Tell who looks on what an inner step says: at first all of it. The last step's words are the answer's."""
        if self.live and index == self._last:
            return
        is_first = index not in self._told
        self._told.add(index)
        text = "".join(reply.texts) if is_first else delta.text
        reasoning = "".join(reply.thoughts) if is_first else delta.reasoning
        if text or reasoning:
            now_s = self._context.now_s()
            self._context.log.note_work(WorkDelta(now_s, self._plan, index, text, reasoning))

    async def _show(self, index: int, delta: AnswerDelta) -> None:
        if self._last not in (None, index):
            return
        async with self.stopped:
            if self._last is None:
                self._waiting.setdefault(index, []).append(delta)
            elif self._last == index:
                await self._context.log.append_delta(delta)
