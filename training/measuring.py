"""How good a conductor is on questions it was not trained on, beside what any one worker could do alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import torch
from rich.progress import track
from transformers import PreTrainedTokenizerBase

from conductor.plan import Plan, Step
from evaluation.graders import grade
from training.data import Asked, Chat
from training.running import PlanRunner
from training.scoring import Score, Terms, score


@dataclass(frozen=True, slots=True)
class Measured:
    """Shares of the questions, plans read off greedily, nothing repaired.

    Args:
        right: answered rightly.
        parsed: with a plan that can run, and nothing beside it.
        single, composite: as `right`, of the questions that take one worker, and two; NaN where there are none.
        right_access: of the composite ones, those right by at least two steps of which the last one reads another.
        steps: of a plan, in the mean.
    """

    right: float
    parsed: float
    single: float
    composite: float
    right_access: float
    steps: float
    questions: int

    def asdict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@torch.no_grad()
def plans(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Chat], max_tokens: int, batch: int = 64,
    temperature: float = 0.0,
) -> list[tuple[str, bool]]:  # fmt: skip
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
    model: Any, tokenizer: PreTrainedTokenizerBase, runner: PlanRunner, asked: Sequence[Asked], max_tokens: int,
    batch: int = 64, temperature: float = 0.0,
) -> tuple[Measured, list[Score]]:  # fmt: skip
    """Let the model plan every question, and run the plans."""
    prompts = [chat(runner, each) for each in asked]
    written = plans(model, tokenizer, prompts, max_tokens, batch, temperature)

    async def run() -> list[Score]:
        return list(
            await asyncio.gather(
                *(scored(runner, each, w[0], ended=w[1]) for each, w in zip(asked, written, strict=True))
            )
        )

    scores = asyncio.run(run())
    return summed(asked, scores), scores


def chat(runner: PlanRunner, asked: Asked) -> Chat:
    """The conductor's prompt as tokenizers take it."""
    return [{"role": m.role, "content": m.text} for m in runner.prompt(asked.question.text, asked.workers)]


async def scored(runner: PlanRunner, asked: Asked, text: str, *, ended: bool = True) -> Score:
    """Run the plan `text`, and say what it is worth; `ended` is false where it was cut off."""
    terms = Terms(runner.conductor.format, runner.limits.max_steps)
    record = await runner.run(asked.question.text, asked.workers, [text], ended=ended)
    return await score(asked.question, record, text, list(asked.workers), terms, ended=ended)


def summed(asked: Sequence[Asked], scores: Sequence[Score]) -> Measured:
    """The shares."""
    both = [(is_composite(each), s) for each, s in zip(asked, scores, strict=True)]
    composite = [s for two, s in both if two]
    ran = [len(s.newest.steps) for s in scores if s.parsed]
    return Measured(
        right=_share([s.right for s in scores]), parsed=_share([s.parsed for s in scores]),
        single=_share([s.right for two, s in both if not two]), composite=_share([s.right for s in composite]),
        right_access=_share([s.right and len(s.newest.steps) > 1 and bool(s.newest.steps[-1].access) for s in composite]),
        steps=mean(ran) if ran else 0.0, questions=len(scores),
    )  # fmt: skip


def is_composite(asked: Asked) -> bool:
    """Whether the question takes two skills, as the synthetic source says."""
    return len(asked.question.facts.get("chain", ())) > 1


def fixed_workers(runner: PlanRunner, asked: Sequence[Asked]) -> dict[str, float]:
    """The share that each worker answers rightly by itself, asked the user's question as it stands."""

    async def share(name: str) -> float:
        members = runner.pool.open_engine
        right = []
        for each in asked:
            task = runner.task(each.question.text, (name,))
            given = Plan((Step(name, ""),))
            async with members.running(_with_plan(task, given)) as run:
                async for _ in run.events():
                    pass
            right.append(run.record.error is None and (await grade(each.question, run.record.answer)).correct)
        return _share(right)

    async def all_of_them() -> dict[str, float]:
        return {name: await share(name) for name in runner.workers}

    return asyncio.run(all_of_them())


def _with_plan(task: Any, plan: Plan) -> Any:
    from dataclasses import replace

    return replace(task, plan=plan, plan_source="worker")


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else float("nan")
