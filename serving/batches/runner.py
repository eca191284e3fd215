"""Runner of batches. Each batch of this replica has a task, which sends the requests of the batch.

A line is one request of a batch. Only a few batches, which are in memory, are active at the same time. They
have a slot each. API keys take turns in getting these slots.

All state is in the store, so another replica can continue a batch at any point. Each line is sent with an
`Idempotency-Key`. If a line is sent again, it joins its existing run. The runner does not depend on HTTP or
on the formats of the APIs.
"""

import asyncio
import logging
import uuid
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import orjson

from conductor.errors import PodiumError, StoreUnavailable
from conductor.run.record import Account
from serving.accounts.account_policy import UNLIMITED, Policies
from serving.accounts.caller import Caller, Scope
from serving.batches.kept_text import kept_in_steps, redactor_of
from serving.batches.lines import (
    FileGoneError,
    Line,
    LineAnswer,
    Lines,
    line_of_answer,
    line_of_refusal,
    read_lines,
)
from serving.batches.model import Batch, LineResult, Status, StoredFile
from serving.batches.store import BatchStore
from serving.database.clock import now_us
from serving.dispatch.slots import FairQueue
from serving.errors import row
from serving.redaction.slices import in_turns
from serving.sessions.execution import PolicyFinder
from serving.sessions.run_admission import room_for_batch
from serving.sessions.service import Service
from serving.settings.sections import BatchSettings

logger = logging.getLogger("podium")

Clock = Callable[[], int]
DAY_US = 86_400_000_000
POLL_S = 0.2
"""Seconds between two checks whether a batch must end, and whether the router has capacity."""
SWEEP_S = 5.0
"""Seconds between two searches for batches of replicas that have ended."""
AGAIN_S = 1.0
"""Seconds after which a rejected line is sent again, if the error does not contain a time."""
LONGEST_LATER_S = 60.0
"""Maximum seconds after which a rejected line is sent again, whatever the error says."""
TURN_S = 300.0
"""Seconds after which a batch must give its slot to a waiting batch."""
MOST_RESULT_BYTES = 500_000_000
"""Maximum bytes of a batch's results. A database can store at most 1 GB in one value, such as a file."""
EXPIRED = "The batch expired before the request of this line was sent."
FULL = f"The results of this batch already have {MOST_RESULT_BYTES} bytes. Send this line in another batch."
LATER = (
    "overloaded",
    "rate_limit_exceeded",
    "store_unavailable",
    "interrupted",
    "budget_exceeded",
    "insufficient_quota",
)
"""Codes of errors, after which a line is sent again if they are retryable. It starts a run or joins its run. A budget is
retryable while other calls hold a part of it. The Responses API calls it a quota."""


SendLine = Callable[[str, bytes, Caller, str], Awaitable[LineAnswer]]
"""Function that handles a line like a request. Its arguments are the path, the body, the caller and the
`Idempotency-Key`."""


class NotOursError(Exception):
    """Another replica has taken over the batch, because this replica seemed dead."""


class Batches:
    """Files and batches of one router replica. Close it with `aclose`.

    Args:
        policies: function that returns the current policies of an account. None if the server has no keys.
        clock: clock for the time of day, in microseconds since 1970.
    """

    def __init__(
        self, store: BatchStore, service: Service, policies: PolicyFinder | None = None, clock: Clock = now_us
    ) -> None:
        self.store, self.now_us = store, clock
        self.send: SendLine | None = None
        self.adding = asyncio.Lock()
        """Lock that is held from the check for free space until the file or batch is stored."""
        self._service, self._policies = service, policies
        self._tasks = dict[str, asyncio.Task[None]]()
        self._sweeping: asyncio.Task[None] | None = None
        self._turns = FairQueue(self.settings.lines_at_once)
        self._places = FairQueue(self.settings.at_once)
        """Slots for batches."""
        self._ending = asyncio.Lock()
        """Lock for batches that end without a slot, so that they end one after another."""

    @property
    def settings(self) -> BatchSettings:
        return self._service.settings().batches

    def drop_us(self, policies: Policies, asked_s: int | None = None) -> int:
        """Return when a new file must be deleted, in microseconds since 1970. `asked_s` is the client's wish,
        or None.
        """
        limits = (self.settings.file_days, self._service.settings().store.content_days, policies.both.content_days)  # fmt: skip
        kept_us = int(min(days for days in limits if days is not None) * DAY_US)
        return self.now_us() + (kept_us if asked_s is None else min(kept_us, asked_s * 1_000_000))

    def begin(self, id: str) -> None:
        """Start to work on a batch that this replica owns."""
        if id not in self._tasks:
            task = asyncio.create_task(self._work_on(id), name=f"batch {id}")
            self._tasks[id] = task
            task.add_done_callback(lambda _: self._tasks.pop(id, None))

    def start(self) -> None:
        """Start to search periodically for batches of replicas that have ended, and take them over."""
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep_on(), name="sweep of batches")

    async def sweep(self) -> int:
        """Take over the batches of replicas that have ended. Return their number."""
        batches = await self.store.take()
        for batch in batches:
            self.begin(batch.id)
        return len(batches)

    async def aclose(self) -> None:
        """Stop the work on all batches. Other replicas take them over."""
        tasks = [*self._tasks.values(), *([self._sweeping] if self._sweeping else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _sweep_on(self) -> None:
        while True:
            with suppress(PodiumError):  # already logged by the store
                await self.sweep()
            await asyncio.sleep(SWEEP_S)

    async def _work_on(self, id: str) -> None:
        while True:
            try:
                if await self._work(id):
                    return
            except NotOursError:
                return
            except StoreUnavailable:
                await asyncio.sleep(AGAIN_S)
            except PodiumError as exc:
                logger.warning("Batch %s failed: %s", id, exc.message)
                with suppress(StoreUnavailable, NotOursError):
                    await self._fail(id, [{"code": "batch_failed", "message": exc.message}])
                    return

    async def _work(self, id: str) -> bool:
        """Work on a batch. Return whether it has ended. If not, it gave its slot to another batch for now."""
        batch = await self.store.get(id)
        if batch is None or not batch.is_open:
            return True
        async with self._batch_place(batch):
            return await self._work_in_place(id)

    async def _work_in_place(self, id: str) -> bool:
        batch = await self.find_own(id)
        if batch.status == "cancelling":
            await self._finish(id, None)
            return True
        try:
            return await self._send_lines(batch)
        except FileGoneError:
            message = f"The file {batch.input_file_id} is no longer stored. Upload it again."
            errors = [{"code": "file_gone", "message": message, "param": "input_file_id"}]
            if await self.store.numbers(id):  # these lines are billed
                await self._finish(id, None, end="expired", errors=errors)
            else:
                await self._fail(id, errors)
            return True

    async def _send_lines(self, batch: Batch) -> bool:
        """Send the lines of a batch and write its files. Return as `_work`. Raise FileGoneError if its input file
        is deleted.
        """
        id = batch.id
        lines, errors = await read_lines(self.store, batch, self.settings.max_lines)
        if errors:
            await self._fail(id, errors)
            return True
        if batch.status == "validating":
            batch = await self._reach(id, "in_progress", {"validating"}, total=len(lines))
        if not await _LineRunner(self, batch).run(lines, await self._find_left(id, lines)):
            return False
        await self._finish(id, lines)
        return True

    async def _find_left(self, id: str, lines: Lines) -> "array[int]":
        """Return the numbers of the lines without a result, in descending order."""
        ended = await self.store.numbers(id)
        return array("Q", (number for number in reversed(range(len(lines))) if number not in ended))

    @asynccontextmanager
    async def _batch_place(self, batch: Batch) -> AsyncGenerator[None]:
        """Hold a slot for a batch during the block. Keys take turns. A batch that only has to end needs none,
        but waits for others to end.
        """
        payer = batch.account.key_id
        turn = asyncio.create_task(self._places.take("batch", payer), name=f"turn of batch {batch.id}")
        try:
            while not turn.done() and not self._is_to_end(batch):
                self._places.resize(self.settings.at_once)
                await asyncio.wait([turn], timeout=SWEEP_S)
                batch = await self.find_own(batch.id)
            if turn.done():
                yield
            else:
                turn.cancel()
                async with self._ending:
                    yield
        finally:
            if turn.done() and not turn.cancelled():
                self._places.give_back(payer)
            else:
                turn.cancel()

    def _is_to_end(self, batch: Batch) -> bool:
        return batch.status in ("cancelling", "finalizing") or self.now_us() >= batch.expires_us

    def is_turn_over(self, began_s: float) -> bool:
        """Return whether a batch that has had its slot since `began_s` must give it to a waiting batch."""
        return self._places.is_waited_for and asyncio.get_running_loop().time() - began_s >= TURN_S

    async def find_caller(self, account: Account) -> Caller:
        """Return the caller of a batch's requests, with current policies. Raise if its key is no longer
        accepted.
        """
        policies = await self._policies(account) if self._policies and account.key_id else UNLIMITED
        return Caller(account, frozenset({Scope.RUN}), policies)

    async def find_own(self, id: str) -> Batch:
        """Return the current state of a batch. Raise NotOursError if it belongs to another replica."""
        batch = await self.store.get(id)
        if batch is None or batch.owner != self.store.owner:
            raise NotOursError
        return batch

    @asynccontextmanager
    async def place(self, account: Account) -> AsyncGenerator[None]:
        """Hold a slot for a line during the block, once the router has capacity. Keys take turns."""
        service = self._service
        self._turns.resize(self.settings.lines_at_once)
        await self._turns.take("batch", account.key_id)
        try:
            while service.running >= room_for_batch(service.pool):  # noqa: ASYNC110 (runs end in many places)
                await asyncio.sleep(POLL_S)
            yield
        finally:
            self._turns.give_back(account.key_id)

    async def _finish(
        self, id: str, lines: Lines | None, *, end: Status = "completed", **fields: Any
    ) -> None:
        batch = await self._reach(id, "finalizing", {"in_progress"})
        unfinished = await self._find_left(id, lines) if lines is not None else ()
        is_late = self.now_us() >= batch.expires_us
        end = "cancelled" if batch.status == "cancelling" else "expired" if unfinished and is_late else end
        if lines is not None and end != "cancelled":
            code, message = ("batch_expired", EXPIRED) if is_late else ("batch_full", FULL)
            for number in reversed(unfinished):
                late = line_of_refusal(id, await lines.get(number), code, message)
                await self.store.put_result(id, late)
        completed, failed = await self.store.counts(id)
        files = {
            "output_file_id": await self._write(batch, "output"),
            "error_file_id": await self._write(batch, "error"),
        }
        await self._reach(id, end, {batch.status}, completed=completed, failed=failed, **files, **fields)
        await self.store.drop_results(id)

    async def _write(self, batch: Batch, kind: Literal["output", "error"]) -> str | None:
        """Write a file of results and return its id, or None if there are no results.

        The file's id is derived from the batch's id, so that a repeated call has no effect.
        """
        id = f"file-{uuid.uuid5(uuid.NAMESPACE_OID, f'{batch.id}/{kind}').hex}"
        name = f"{batch.id}_{kind}.jsonl"
        drop_us = await self._drop_us(batch)
        file = StoredFile(id, batch.account, "batch_output", name, 0, self.now_us(), drop_us)
        return id if await self.store.write_results(batch.id, file, errors=kind == "error") else None

    async def _drop_us(self, batch: Batch) -> int:
        """Return when a batch's results must be deleted: by current policies, or with the batch if its key is
        not accepted.
        """
        try:
            return self.drop_us((await self.find_caller(batch.account)).policies, batch.output_s)
        except StoreUnavailable:
            raise
        except PodiumError:
            return batch.drop_us

    async def _fail(self, id: str, errors: list[dict[str, Any]]) -> None:
        await self._reach(id, "failed", {"validating", "in_progress", "finalizing", "cancelling"}, errors=errors)  # fmt: skip
        await self.store.drop_results(id)

    async def _reach(self, id: str, status: Status, before: set[str], **fields: Any) -> Batch:
        """Change the status of a batch, and other fields, if its status is one of `before`. Return the batch."""

        def change(batch: Batch) -> Batch:
            if batch.owner != self.store.owner:
                raise NotOursError
            if batch.status not in before:
                return batch
            stamps = batch.stamps | {status: self.now_us()}
            return replace(batch, status=status, stamps=stamps, **fields)

        return await self.store.change(id, change)


class _LineRunner:
    """Sends the lines of one batch that this replica works on."""

    def __init__(self, batches: Batches, batch: Batch) -> None:
        self._batches, self._batch = batches, batch
        self._result_bytes = 0
        self._without_place = set[asyncio.Task[None]]()
        """Tasks of lines that have no slot, because they wait for one or were rejected."""

    async def run(self, lines: Lines, remaining: "array[int]") -> bool:
        """Send the lines in `remaining`, the last first, until all have ended, or the batch was cancelled, expired
        or has too many results. Return False if another batch needs the slot.
        """
        began_s, active = asyncio.get_running_loop().time(), set[asyncio.Task[None]]()
        is_through = True
        self._result_bytes = await self._batches.store.result_bytes(self._batch.id)
        try:
            while remaining or active:
                batch = await self._batches.find_own(self._batch.id)
                ends = batch.status != "in_progress" or self._batches.now_us() >= batch.expires_us
                ends = ends or self._result_bytes >= MOST_RESULT_BYTES
                if ends or self._batches.is_turn_over(began_s):
                    is_through = ends
                    del remaining[:]
                    for task in self._without_place:
                        task.cancel()
                while remaining and len(active) < self._batches.settings.lines_at_once:
                    active.add(self._take_in_hand(await lines.get(remaining.pop())))
                if active:
                    done, active = await asyncio.wait(
                        active, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        if not task.cancelled():
                            task.result()
        finally:
            for task in active:
                task.cancel()
            if active:
                await asyncio.wait(active)
        return is_through

    def _take_in_hand(self, line: Line) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(line), name="line of a batch")
        self._without_place.add(task)
        task.add_done_callback(self._without_place.discard)
        return task

    async def _run(self, line: Line) -> None:
        while True:
            answer = await self._answer_in_turn(line)
            if isinstance(answer, LineResult):
                self._result_bytes += len(answer.body)
                return await self._batches.store.put_result(self._batch.id, answer)
            await asyncio.sleep(answer)

    async def _answer_in_turn(self, line: Line) -> LineResult | float:
        """Send a line in a slot. Return its result, or the seconds after which to send it again."""
        task = asyncio.current_task()
        assert task is not None, "called from the task of a line"
        async with self._batches.place(self._batch.account):
            self._without_place.discard(task)
            answer = await self._answer(line)
            if not isinstance(answer, LineResult):
                self._without_place.add(task)
            return answer

    async def _answer(self, line: Line) -> LineResult | float:
        id, send = self._batch.id, self._batches.send
        assert send is not None, "set by the API"
        if line.fault is not None:
            return line_of_refusal(id, line, "invalid_request", line.fault)
        try:
            caller = await self._batches.find_caller(self._batch.account)
        except StoreUnavailable:
            raise
        except PodiumError as exc:  # the key was revoked or has expired
            return line_of_refusal(id, line, row(exc).code, exc.message)
        answer = await send(self._batch.endpoint, orjson.dumps(line.body), caller, f"{id}-{line.number}")
        if answer.later_s is not None:
            return min(max(answer.later_s, POLL_S), LONGEST_LATER_S)
        result = line_of_answer(id, line, answer.status, answer.run_id, answer.body)
        text = await in_turns(kept_in_steps(result.body, redactor_of(caller.policies)), caller.account)
        return replace(result, body=text.rstrip(b"\n"))
