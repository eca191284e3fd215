"""Two rounds in one step: plans, and second plans by a policy that has read its first one and what came of it.

By TRL's `rollout_func` (1.16, marked experimental there), because a second round's prompt is only known once the first round has run.
The rows of a step come in pairs of groups, each pair about one question: the first group's completions are first plans, the
second group's are second plans, each about the first plan of the same place. So each round has its own baseline, as in the paper
(arXiv 2512.04388, appendix A.1), and half of the samples are in the recursive round.

Generation is by transformers, on one process: with vLLM or more processes `rollout_func` would have to bring its own.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import torch

from training.data import Chat
from training.plan_runner import PlanRunner
from training.reward import PlanReward, figures
from training.scoring import Score


class TwoRounds:
    """A `rollout_func`, and the reward that goes with it.

    Args:
        reward: scores plans.
        runner: makes prompts.
        asked: of each prompt (its `key`), the question's id and the workers.
        group: completions of a question in a round.
        discount: d; the first plan's reward is (1 - d) r0 + d r1, the second one's r1.
    """

    def __init__(
        self,
        reward: PlanReward,
        runner: PlanRunner,
        asked: dict[str, tuple[str, list[str]]],
        group: int,
        discount: float,
    ) -> None:
        self._reward, self._runner, self._asked = reward, runner, asked
        self._group, self._discount = group, discount

    def __call__(self, prompts: list[Chat], trainer: Any) -> dict[str, Any]:
        """Completions for `prompts`, which are pairs of groups, and what the reward needs."""
        group = self._group
        if len(prompts) % (2 * group):
            raise ValueError(
                f"{len(prompts)} prompts are not pairs of groups of {group}; set micro_batch to the whole step's"
            )
        firsts = [index for index in range(len(prompts)) if index // group % 2 == 0]
        seconds = [index + group for index in firsts]
        written = self._generated([prompts[index] for index in firsts], trainer)
        told = [self._asked[key(prompts[index])] for index in firsts]
        scored = self._scored(
            [(id, workers, [text]) for (id, workers), (text, *_) in zip(told, written, strict=True)],
            written,
            trainer,
        )
        revised = [
            self._revision(id, workers, first.record.answer, text)
            for (id, workers), first, (text, *_) in zip(told, scored, written, strict=True)
        ]
        again = self._generated(revised, trainer)
        plans = [
            (id, workers, [text, second] if first.parsed and first.record.answer else [second])
            for (id, workers), first, (text, *_), (second, *_) in zip(
                told, scored, written, again, strict=True
            )
        ]
        rescored = self._scored(plans, again, trainer)
        rows: dict[int, tuple[list[int], list[int], float | None]] = {}
        for at, first, second, (_, prompt_ids, ids) in zip(firsts, scored, rescored, written, strict=True):
            worth = blend(first.reward, second.reward, self._discount) if first.parsed else first.reward
            rows[at] = (prompt_ids, ids, worth)
        for at, second, first, (_, prompt_ids, ids) in zip(seconds, rescored, scored, again, strict=True):
            rows[at] = (prompt_ids, ids, second.reward if first.parsed else None)
        ordered = [rows[index] for index in range(len(prompts))]
        return {
            "prompt_ids": [row[0] for row in ordered],
            "completion_ids": [row[1] for row in ordered],
            "logprobs": None,
            "worth": [row[2] for row in ordered],
            "told": [figures_of(self._runner, plans, scored, rescored)] * len(prompts),
        }

    async def reward(
        self, completions: Sequence[Any], worth: Sequence[float | None], **given: Any
    ) -> list[float | None]:
        """What the rollout found; the runs were made there."""
        for name, value in given["told"][0].items():
            given["log_metric"](name, value)
        return list(worth)

    def _revision(self, id: str, workers: list[str], outcome: str, plan: str) -> Chat:
        text = self._reward.question(id).text
        return [
            {"role": m.role, "content": m.text}
            for m in self._runner.revision(text, workers, plan, outcome or "(nothing)")
        ]

    def _scored(
        self,
        plans: Sequence[tuple[str, list[str], list[str]]],
        written: Sequence[tuple[str, list[int], list[int]]],
        trainer: Any,
    ) -> list[Score]:
        async def run() -> list[Score]:
            ends = [bool(ids) and ids[-1] == trainer.processing_class.eos_token_id for _, _, ids in written]
            calls = [self._reward.score(*plan, ended=end) for plan, end in zip(plans, ends, strict=True)]
            return list(await asyncio.gather(*calls))

        return asyncio.run_coroutine_threadsafe(run(), trainer.async_loop).result()

    @torch.no_grad()
    def _generated(self, prompts: Sequence[Chat], trainer: Any) -> list[tuple[str, list[int], list[int]]]:
        """For each prompt: the text, the prompt's tokens, the completion's, its end mark included."""
        tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)
        texts = [
            tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=False)
            for each in prompts
        ]
        inputs = tokenizer(
            texts, return_tensors="pt", padding=True, add_special_tokens=False, padding_side="left"
        )
        ids, mask = inputs["input_ids"].to(model.device), inputs["attention_mask"].to(model.device)
        made = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=trainer.args.max_completion_length,
            do_sample=True,
            temperature=trainer.args.temperature,
            top_k=0,
            top_p=1.0,
            disable_compile=True,
        )
        found: list[tuple[str, list[int], list[int]]] = []
        for row, attended, whole in zip(ids, mask, made.tolist(), strict=True):
            completion = whole[len(row) :]
            if tokenizer.eos_token_id in completion:
                completion = completion[: completion.index(tokenizer.eos_token_id) + 1]
            found.append(
                (
                    tokenizer.decode(completion, skip_special_tokens=True),
                    row[attended.bool()].tolist(),
                    completion,
                )
            )
        return found


def key(prompt: Chat) -> str:
    """A prompt, as a dictionary's key."""
    return json.dumps([[turn["role"], turn["content"]] for turn in prompt])


def blend(first: float | None, second: float | None, discount: float) -> float | None:
    """The first plan's reward; None where either cannot be scored."""
    return None if first is None or second is None else (1 - discount) * first + discount * second


def figures_of(
    runner: PlanRunner,
    plans: Sequence[tuple[str, list[str], list[str]]],
    first: list[Score],
    second: list[Score],
) -> dict[str, float]:
    """Both rounds' figures; the second's under `second/`."""
    groups = [id for id, _, _ in plans]
    accepted = sum(bool(score.record.plans and score.newest.accepted) for score in second) / len(second)
    later = {f"second/{name}": value for name, value in figures(second, groups, runner.workers).items()}
    return figures(first, groups, runner.workers) | later | {"second/accepted": accepted}
