"""How good a conductor is on questions it was not trained on, beside what any one worker could do alone."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from statistics import mean
from typing import Any

import torch
from rich.progress import track
from transformers import PreTrainedTokenizerBase

from conductor.plan import Plan, Step
from evaluation.graders import grade
from training.data import Chat, TeamQuestion
from training.plan_runner import PlanRunner
from training.scoring import RewardTerms, Score, score


@dataclass(frozen=True, slots=True)
class PolicyMetrics:
    """Shares of the questions of one source, plans read as they were written, nothing repaired.

    Args:
        right: answered rightly.
        parsed: with a plan that can run, and nothing beside it.
        single, composite: as `right`, of the synthetic questions that take one skill, and two; None where there are none.
        right_access: of the composite ones, those right by at least two steps of which the last one reads another; likewise.
        steps: of a plan, in the mean; 0 where none parsed.
        questions: how many there were.
    """

    right: float
    parsed: float
    single: float | None
    composite: float | None
    right_access: float | None
    steps: float
    questions: int

    def asdict(self) -> dict[str, float | None]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SoloAccuracy:
    """What the workers answer rightly by themselves, asked the user's question as it stands: shares of the questions of one source.

    Args:
        workers: each one's share, of the questions that it may be asked.
        oracle: of the questions that at least one of them answers rightly.
    """

    workers: dict[str, float]
    oracle: float


@torch.no_grad()
def plans(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Chat],
    max_tokens: int,
    batch: int = 64,
    temperature: float = 0.0,
) -> list[tuple[str, bool]]:
    """What the model writes for each prompt, and whether it came to its end."""
    model.eval()
    written: list[tuple[str, bool]] = []
    for start in track(range(0, len(prompts), batch), description="writing plans", transient=True):
        texts = [
            tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
            for prompt in prompts[start : start + batch]
        ]
        inputs = tokenizer(
            texts, return_tensors="pt", padding=True, add_special_tokens=False, padding_side="left"
        )
        inputs = {name: inputs[name].to(model.device) for name in ("input_ids", "attention_mask")}
        sampling = (
            {"do_sample": True, "temperature": temperature, "top_k": 0}
            if temperature
            else {"do_sample": False}
        )
        made = model.generate(**inputs, max_new_tokens=max_tokens, disable_compile=True, **sampling)
        for ids in made[:, inputs["input_ids"].shape[1] :].tolist():
            ended = tokenizer.eos_token_id in ids
            kept = ids[: ids.index(tokenizer.eos_token_id)] if ended else ids
            written.append((tokenizer.decode(kept, skip_special_tokens=True), ended))
    model.train()
    return written


def measure(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    runner: PlanRunner,
    asked: Sequence[TeamQuestion],
    max_tokens: int,
    batch: int = 64,
    temperature: float = 0.0,
) -> dict[str, PolicyMetrics]:
    """Let the model plan every question, and run the plans; figures by the questions' source. Closes the runner."""
    prompts = [chat(runner, each) for each in asked]
    written = plans(model, tokenizer, prompts, max_tokens, batch, temperature)

    async def run() -> list[Score]:
        async with aclosing(runner):
            return list(
                await asyncio.gather(
                    *(scored(runner, each, w[0], ended=w[1]) for each, w in zip(asked, written, strict=True))
                )
            )

    scores = asyncio.run(run())
    return {
        source: summed(
            *zip(
                *((a, s) for a, s in zip(asked, scores, strict=True) if a.question.source == source),
                strict=True,
            )
        )
        for source in sources(asked)
    }


def sources(asked: Sequence[TeamQuestion]) -> list[str]:
    """Where the questions are from, each once. Figures of one source say nothing about another, and have other workers beside them."""
    return list(dict.fromkeys(each.question.source for each in asked))


def chat(runner: PlanRunner, asked: TeamQuestion) -> Chat:
    """The conductor's prompt as tokenizers take it."""
    return [{"role": m.role, "content": m.text} for m in runner.prompt(asked.question.text, asked.workers)]


async def scored(runner: PlanRunner, asked: TeamQuestion, text: str, *, ended: bool = True) -> Score:
    """Run the plan `text`, and say what it is worth; `ended` is false where it was cut off."""
    terms = RewardTerms(runner.conductor.format, runner.limits.max_steps)
    record = await runner.run(asked.question.text, asked.workers, [text], ended=ended)
    return await score(asked.question, record, text, list(asked.workers), terms, ended=ended)


def summed(asked: Sequence[TeamQuestion], scores: Sequence[Score]) -> PolicyMetrics:
    """The shares."""
    by_parts: dict[int, list[Score]] = {1: [], 2: []}
    for each, s in zip(asked, scores, strict=True):
        if chain := each.question.facts.get("chain", ()):
            by_parts[min(len(chain), 2)].append(s)
    composite, ran = by_parts[2], [len(s.newest.steps) for s in scores if s.parsed]
    return PolicyMetrics(
        right=mean(s.right for s in scores),
        parsed=mean(s.parsed for s in scores),
        single=_share([s.right for s in by_parts[1]]),
        composite=_share([s.right for s in composite]),
        right_access=_share(
            [s.right and len(s.newest.steps) > 1 and bool(s.newest.steps[-1].access) for s in composite]
        ),
        steps=mean(ran) if ran else 0.0,
        questions=len(scores),
    )


def alone(runner: PlanRunner, asked: Sequence[TeamQuestion]) -> dict[str, SoloAccuracy]:
    """Ask each worker each question that it may be asked, by itself; figures by the questions' source. Closes the runner."""

    async def right(worker: str, each: TeamQuestion) -> bool:
        task = replace(
            runner.task(each.question.text, (worker,)), plan=Plan((Step(worker, ""),)), plan_source="worker"
        )
        async with runner.pool.open_engine.running(task) as run:
            async for _ in run.events():
                pass
        return run.record.error is None and (await grade(each.question, run.record.answer)).correct

    async def every() -> list[dict[str, bool]]:
        # One question after another: workers may be other people's machines.
        async with aclosing(runner):
            return [{name: await right(name, each) for name in each.workers} for each in asked]

    answers = list(zip(asked, asyncio.run(every()), strict=True))
    return {
        source: _alone([found for each, found in answers if each.question.source == source])
        for source in sources(asked)
    }


def _alone(answers: Sequence[dict[str, bool]]) -> SoloAccuracy:
    names = dict.fromkeys(name for found in answers for name in found)
    return SoloAccuracy(
        {name: mean(found[name] for found in answers if name in found) for name in sorted(names)},
        mean(any(found.values()) for found in answers),
    )


def _share(flags: Sequence[bool]) -> float | None:
    return mean(flags) if flags else None
