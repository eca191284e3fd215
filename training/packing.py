"""Pack examples into rows. In a row, examples whose prompts have a common prefix share the tokens of that
prefix.

A team's cards are most of a prompt. In a row of several requests to one team, the cards are read once, and
each request attends to them and to itself (`training.branch_attention`). The gradients equal those of
separate rows.
"""

import math
import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import torch

from training.branch_attention import PADDING, SHARED
from training.plan_runner import Chat

IGNORED = -100
LENGTHS = 64
MOST_WORKERS = 10
"""Maximum number of workers in a team. Up to this number, a worker's index is a single token."""
THOUSAND = 1000
"""Scale of weights and rewards in labels, which are integers and therefore stored in thousandths."""
TARGET, WEIGHT, CHOICES = 0, 1, 2
"""Columns of a label: the token, its weight, and then the tokens to choose among and their worth."""
WIDTH = CHOICES + 2 * MOST_WORKERS
_WORKER = re.compile(r'"worker": (\d)\b')
_NEEDS = re.compile(r'"needs": "(.*",) "worker": ')
"""The `needs` of a step, including its closing quote and comma."""


class Collator:
    """Collates rows of examples into a batch, padded on the left.

    A batch has these tensors:

    - `input_ids`, `position_ids` and `branches` (B, T). `branches` is for `branch_attention`.
    - `logits_to_keep` (N,): the columns whose next token has a weight in any row.
    - `labels` (B, N, `WIDTH`).

    T is a multiple of `LENGTHS`, because preparing kernels for a new length takes as long as a row. Logits
    are computed only for the columns of `logits_to_keep`. With a vocabulary of 49,152, the logits of the
    prompts would take more memory than everything else, and a third of the time.

    Args:
        worker_weight: the weight of a token that chooses a worker, and of the tokens of a `needs` that is
            learned (`Example.names_need`).
        with_rewards: whether to judge a worker's token by the worth of each worker, if the example has
            rewards.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_weight: float = 0.0,
        plan_weight: float = 1.0,
        worker_weight: float = 1.0,
        *,
        with_rewards: bool = False,
    ) -> None:
        self._tokenizer, self._with_rewards = tokenizer, with_rewards
        self._prompt_weight, self._plan_weight, self._worker_weight = (
            round(THOUSAND * weight) for weight in (prompt_weight, plan_weight, worker_weight)
        )
        numbers = [tokenizer(f"{n}", add_special_tokens=False)["input_ids"] for n in range(MOST_WORKERS)]
        self._numbers = [ids[-1] for ids in numbers]

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        packed = [_Row.of([self._branch(each) for each in row["examples"]]) for row in rows]
        longest = LENGTHS * math.ceil(max(len(row.ids) for row in packed) / LENGTHS)
        padded = [row.pad(longest, self._tokenizer.pad_token_id) for row in packed]
        labels = torch.tensor([row.labels for row in padded])
        columns = (labels[:, :, WEIGHT] > 0).any(0).nonzero().squeeze(1)
        return {
            "input_ids": torch.tensor([row.ids for row in padded]),
            "position_ids": torch.tensor([row.positions for row in padded]),
            "branches": torch.tensor([row.branches for row in padded]),
            "logits_to_keep": columns,
            "labels": labels[:, columns],
        }

    def _branch(self, example: dict[str, Any]) -> "tuple[list[int], list[list[int]]]":
        """Return an example's tokens, and for each of them the label of the next token."""
        prompt: Chat = example["prompt"]
        before = self._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        completion = self._tokenizer(
            example["plan"] + self._tokenizer.eos_token, add_special_tokens=False, return_offsets_mapping=True
        )
        after = completion["input_ids"]
        starts = [start for start, _ in completion["offset_mapping"]]
        workers = [len(before) + starts.index(match.start(1)) for match in _WORKER.finditer(example["plan"])]
        ids = [*before, *after]
        weights = [self._prompt_weight] * len(before) + [self._plan_weight] * len(after)
        for place in workers:
            weights[place] = self._worker_weight
        needs = [match.span(1) for match in _NEEDS.finditer(example["plan"])] if example["names_need"] else []
        for place, start in enumerate(starts, len(before)):
            if any(first <= start < end for first, end in needs):
                weights[place] = self._worker_weight
        labels = [_label(token, weight) for token, weight in zip(ids[1:], weights[1:], strict=True)]
        if self._with_rewards and example["rewards"]:
            for place, worths in zip(workers, example["rewards"], strict=True):
                labels[place - 1] = _label(ids[place], self._worker_weight, self._numbers, worths)
        return ids, [*labels, _label(IGNORED, 0)]


class _Row:
    """Tokens of a row, with their positions, branches and labels."""

    def __init__(
        self, ids: list[int], positions: list[int], branches: list[int], labels: list[list[int]]
    ) -> None:
        self.ids, self.positions, self.branches, self.labels = ids, positions, branches, labels

    @classmethod
    def of(cls, examples: "Sequence[tuple[list[int], list[list[int]]]]") -> "_Row":
        """Build a row from the examples' common prefix and the rest of each example."""
        shared = 0
        if len(examples) > 1:
            columns = zip(*(ids for ids, _ in examples), strict=False)
            shared = len(list(takewhile(lambda tokens: len(set(tokens)) == 1, columns)))
        first = examples[0]
        row = cls(first[0][:shared], list(range(shared)), [SHARED] * shared, first[1][:shared])
        for number, (ids, labels) in enumerate(examples):
            row.ids += ids[shared:]
            row.positions += range(shared, len(ids))
            row.branches += [number] * (len(ids) - shared)
            row.labels += labels[shared:]
        return row

    def pad(self, length: int, pad: int) -> "_Row":
        room = length - len(self.ids)
        return _Row(
            [pad] * room + self.ids,
            [0] * room + self.positions,
            [PADDING] * room + self.branches,
            [_label(IGNORED, 0)] * room + self.labels,
        )


def _label(token: int, weight: int, tokens: Sequence[int] = (), worths: Sequence[float] = ()) -> list[int]:
    tokens = tokens[: len(worths)]
    room = [IGNORED] * (MOST_WORKERS - len(worths))
    return [token, weight, *tokens, *room, *(round(THOUSAND * worth) for worth in worths), *room]


def plan_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """Return the weighted mean loss: cross-entropy for most tokens, and the expected loss of worth for a token
    that chooses a worker.

    Such a token is a choice among the team's numbers. The worth of each worker is known, so the expected
    worth and its gradient are exact, without sampling a plan.
    """
    logits, labels = outputs.logits.flatten(0, 1).float(), labels.flatten(0, 1)
    weights = labels[:, WEIGHT].float()
    losses = torch.nn.functional.cross_entropy(
        logits, labels[:, TARGET], ignore_index=IGNORED, reduction="none"
    )
    tokens, worths = labels[:, CHOICES : CHOICES + MOST_WORKERS], labels[:, CHOICES + MOST_WORKERS :]
    choices = (tokens[:, 0] != IGNORED).nonzero().squeeze(1)
    if len(choices):
        losses = losses.index_copy(
            0, choices, _expectation_losses(logits[choices], tokens[choices], worths[choices])
        )
    return (losses * weights).sum() / weights.sum()


def _expectation_losses(logits: torch.Tensor, tokens: torch.Tensor, worths: torch.Tensor) -> torch.Tensor:
    """Return the worth that the policy's choice loses on average, 0 for the best worker."""
    there = tokens != IGNORED
    scores = logits.gather(1, tokens.clamp(min=0)).masked_fill(~there, float("-inf"))
    worth = worths.masked_fill(~there, 0).float() / THOUSAND
    return worth.amax(1) - (scores.softmax(1) * worth).sum(1)
