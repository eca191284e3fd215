"""Measure how well a conductor leads unknown teams, by its plans for held-out requests."""
# The types of transformers and xgrammar are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import json
import random
from collections.abc import Sequence
from typing import Any

import xgrammar
from rich.progress import track
from xgrammar.contrib.hf import LogitsProcessor

from conductor.plan.grammars import grammar
from conductor.plan.instructions import layout_of
from conductor.plan.prompts import Prompts
from training.curriculum.questions import RequestQuestion
from training.curriculum.verdicts import MAX_STEPS, PlanVerdict, judge, table
from training.generation import generate
from training.plan_runner import Chat

MAX_TOKENS = 384
"""Maximum number of tokens of a plan, as in cluster/local.yaml."""
BATCH = 16


def write_plans(
    model: Any, tokenizer: Any, questions: Sequence[RequestQuestion], prompts: Prompts, subtask_chars: int
) -> list[str]:
    """Return the model's plans, decoded greedily and constrained by the grammar, as on the server."""
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
    compiler = xgrammar.GrammarCompiler(info)
    sizes = {len(question.workers) for question in questions}
    compiled = {
        size: compiler.compile_grammar(grammar("steps", size, MAX_STEPS, subtask_chars=subtask_chars).ebnf)
        for size in sizes
    }
    # Batch prompts of similar length, because padding costs as much as reading.
    chats = [plan_prompt(prompts, question) for question in questions]
    order = sorted(
        range(len(questions)), key=lambda index: sum(len(turn["content"]) for turn in chats[index])
    )
    texts = [""] * len(questions)
    for start in track(range(0, len(order), BATCH), description="writing plans", transient=True):
        part = order[start : start + BATCH]
        processor = LogitsProcessor([compiled[len(questions[index].workers)] for index in part])
        completions = generate(
            model, tokenizer, [chats[index] for index in part], MAX_TOKENS, 0.0, [processor]
        )
        for index, completion in zip(part, completions, strict=True):
            texts[index] = completion.text
    return texts


def plan_prompt(prompts: Prompts, question: RequestQuestion) -> Chat:
    """Return the server's prompt for the conductor's first plan."""
    members = [question.members[name] for name in question.workers]
    messages = prompts.plan(layout_of("steps"), members, MAX_STEPS, question.conversation)
    return [{"role": message.role, "content": message.text} for message in messages]


def random_plans(questions: Sequence[RequestQuestion]) -> list[str]:
    """Return a plan with one step and a random worker for each request. These plans are the baseline."""
    rng = random.Random("random plans")
    return [
        json.dumps({"subtask": "", "worker": rng.randrange(len(each.workers)), "access": []})
        for each in questions
    ]


def figures(questions: Sequence[RequestQuestion], texts: Sequence[str]) -> dict[str, Any]:
    """Return the figures by kind of request, for all, for untrained domains, and for the rest."""
    verdicts = [judge(question, text) for question, text in zip(questions, texts, strict=True)]
    pairs: list[tuple[RequestQuestion, PlanVerdict]] = list(zip(questions, verdicts, strict=True))
    groups = {
        "all": pairs,
        "new domains": [pair for pair in pairs if pair[0].is_new],
        "known domains, new words": [pair for pair in pairs if not pair[0].is_new],
    }
    return {name: table(*zip(*group, strict=True)) for name, group in groups.items() if group}
