"""A kept run whose answer is replaced: what its readers receive, and when."""

import asyncio
from itertools import count
from typing import Any

from conductor.errors import WorkerUnavailable
from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.model.reply import FinishReason
from conductor.plan.plan import Step
from conductor.run.events import (
    AnswerDelta,
    Event,
    PlanStarted,
    RunFailed,
    RunFinished,
    StepPlanned,
    StepRestarted,
    StepStarted,
    Terminal,
)
from conductor.run.fold import after
from conductor.run.record import Record
from conductor.run.task import Task
from serving.api.feed import show_event
from serving.database.address import Address
from serving.sessions.following import Pump, RetoldAnswer
from serving.store.rows import Item
from serving.store.store import EventPage, RecordStore
from tests.serving.api.served import Json, answer_text, parsed, scripted, team
from tests.serving.store.stores import replicas
from tests.serving.store.test_idempotency import ask
from tests.states import until

WORDS = " ".join(f"word{n}" for n in range(40))
OTHER = " ".join(f"other{n}" for n in range(20))
BREAKS: Json = {"text": WORDS, "fail_after_tokens": 8}
BROKE = Failure.of(WorkerUnavailable("It broke.", worker="a"))
AGAIN = (StepRestarted(0.2, 0, 0, BROKE, None), StepStarted(0.2, 0, 0, ()))


def breaking(*, tokens_per_s: int = 15) -> Json:
    paced = {"tokens_per_s": tokens_per_s}
    workers = [scripted("a", BREAKS, fallbacks=["b"], **paced), scripted("b", OTHER, **paced)]
    return team(workers=workers, workflows={})


class Pages:
    """Store that returns these events of a run page by page."""

    def __init__(self, *pages: list[Item]) -> None:
        self._pages = list(pages)

    async def info(self, id: str) -> None:
        return None

    async def events(self, id: str, after: int) -> EventPage:
        return EventPage(self._pages.pop(0), is_over=False) if self._pages else EventPage([], is_over=True)


async def follow(text: str, *then: Event) -> list[Event]:
    """Return the events for a reader of `text` if the rest arrives together."""
    first, n = PlanStarted(0.0, 0, 0, "client", None, ()), count(1)
    record = after(Record("wf_1", Task((Message.of("user", "Why?"),)), 0.0), first)
    before = (
        StepPlanned(0.0, 0, 0, Step("a", "do", ())),
        StepStarted(0.0, 0, 0, ()),
        AnswerDelta(0.1, text),
    )
    pages = (
        [Item(next(n), "wf_1", first, record), *(Item(next(n), "wf_1", event, None) for event in before)],
        [Item(next(n), "wf_1", event, None) for event in then],
    )
    store: RecordStore = Pages(*pages)  # type: ignore[assignment]
    pump = Pump(store, "wf_1")
    run = await pump.first()
    await pump.run_on(run)
    return await run.answer.next_all()


async def test_no_event_follows_the_end_sent_to_a_reader_of_the_first_answer():
    events = await follow("It is", *AGAIN, AnswerDelta(0.3, "Fo"), AnswerDelta(0.4, "ur."))
    assert (
        [type(event) for event in events if isinstance(event, Terminal)] == [type(events[-1])] == [RunFailed]
    )


async def test_a_reader_of_text_beyond_the_new_answer_gets_a_failure():
    end = RunFinished(0.5, "Yes", FinishReason.STOP)
    assert isinstance((await follow("Yes, but", *AGAIN, AnswerDelta(0.3, "Yes"), end))[-1], RunFailed)
    assert isinstance((await follow("Ye", *AGAIN, AnswerDelta(0.3, "Yes"), end))[-1], RunFinished)


def test_a_watcher_of_text_beyond_the_new_answer_gets_it_whole():
    answer, bodies = RetoldAnswer(), list[Json]()
    end = RunFinished(0.5, "Yes", FinishReason.STOP)
    for event in (AnswerDelta(0.1, "Yes, but"), *AGAIN, AnswerDelta(0.3, "Yes"), end):
        bodies += show_event(event, answer)
    assert [each["type"] for each in bodies[-2:]] == ["answer_restarted", "finished"]
    assert bodies[-2]["text"] == "Yes"


async def test_a_second_reader_never_gets_a_mixture_of_two_answers(store_address: Address):
    async with replicas(store_address, breaking()) as (one, other):
        first = asyncio.create_task(ask(one.api, model="a", stream=True))
        await until(lambda: one.api.service.running == 1)
        second = asyncio.create_task(ask(other.api, model="a", stream=True))
        async with asyncio.timeout(10):
            texts = [(await each).text for each in (first, second)]
    for text in texts:
        is_told = '"interrupted"' in text
        assert answer_text(parsed(text)) == OTHER or (is_told and WORDS.startswith(answer_text(parsed(text))))


async def test_a_responses_numbered_events_do_not_change(store_address: Address):
    async with replicas(store_address, breaking(tokens_per_s=40), n=1) as (one,), one.api.sdk as sdk:
        stream = await sdk.responses.create(model="a", input="Go.", background=True, stream=True)
        live: list[Any] = [event.to_dict() async for event in stream]
        id = live[0]["response"]["id"]
        for after_n in range(0, len(live) - 1, 3):
            again = await sdk.responses.retrieve(id, stream=True, starting_after=after_n)
            rest: list[Any] = [event.to_dict() async for event in again]
            assert [each["type"] for each in rest] == [each["type"] for each in live[after_n + 1 :]]
    assert live[-1]["type"] == "response.failed"
