"""What the conductor and each worker are shown.

The conductor's prompt is static first (instructions, examples), then the pool, then the conversation, so that its prefix can be
served from the cache. Workers always see the user's own conversation; what else they see is what their step may read. Wording
is ours; the order of the worker's parts follows arXiv 2512.04388 (its code's message layout), the cards are our addition.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conductor.errors import InvalidPlan
from conductor.formats import Format
from conductor.plan import Step
from conductor.worker import Image, Member, Message, Part, Text

ROLE = """\
You lead a team of language models. You do not answer the user yourself: you write a plan that makes the team answer well.

A plan has at most {max_steps} steps. Each step has
- a worker: the number of the model that does it,
- a subtask: what to do, in one or two sentences to that model,
- an access list: the numbers of the earlier steps, from 0, whose outputs it may read.
Steps that do not read each other run at the same time. Every worker sees the user's question. The last step's output is the
answer the user gets, so let it be the complete answer. Use one step for an easy question, more only where they help.
"""

STEPS = """\
Write one JSON object a line and nothing else. For example, for a question of two parts:
{"worker": 1, "subtask": "Derive the formula the question asks for.", "access": []}
{"worker": 0, "subtask": "List the special cases in which such a formula fails.", "access": []}
{"worker": 1, "subtask": "Answer the question with the formula, corrected for the special cases.", "access": [0, 1]}
For an easy question:
{"worker": 0, "subtask": "Answer the question briefly.", "access": []}
"""

LISTS = """\
Think first, in a sentence or two. Then write three Python lists of equal length and nothing after them. For example:
The question has two independent parts, then they must be joined.
model_id = [1, 0, 1]
subtasks = ["Derive the formula the question asks for.", "List the special cases in which it fails.", "Join both."]
access_list = [[], [], ["all"]]
For an easy question:
One model can answer at once.
model_id = [0]
subtasks = ["Answer the question briefly."]
access_list = [[]]
"""

FALLBACK_CARD = "a general language model"
ANSWER = "Answer the question."
"""The task of a step that has none and reads others."""
NO_IMAGE = "[A picture is here that this model cannot see.]"
_MARK = re.compile(r"<(?=\s*/?\s*(?:output|task)\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts that settings may replace.

    Args:
        conductor: instructions; `{max_steps}` stands for the request's figure.
        steps, lists: how to write the two formats, with examples.
    """

    conductor: str = ROLE
    steps: str = STEPS
    lists: str = LISTS

    def plan(
        self, format: Format, pool: Sequence[Member], max_steps: int, conversation: Sequence[Message]
    ) -> list[Message]:
        """What the conductor is shown to write a plan: static text, then the pool in its numbering, then the question."""
        how = self.steps if format == "steps" else self.lists
        team = "\n".join(f"{number}: {member.card or FALLBACK_CARD}" for number, member in enumerate(pool))
        system = f"{self.conductor.replace('{max_steps}', str(max_steps))}\n{how}\nThe team:\n{team}"
        return [Message.of("system", system), Message.of("user", _question(conversation))]

    def repair(self, asked: Sequence[Message], written: str, error: InvalidPlan) -> list[Message]:
        """The same again, after a plan that cannot run."""
        complaint = f"This plan cannot run: {error.message} Write the whole plan again, in the same format."
        return [*asked, Message.of("assistant", written or "(nothing)"), Message.of("user", complaint)]

    def revise(self, asked: Sequence[Message], written: str, outcome: str, format: Format) -> list[Message]:
        """The paper's recursion (section 3.2): the conductor reads its plan and the outcome, and accepts or plans again."""
        accept = '{"accept": true}' if format == "steps" else "three empty lists"
        verdict = (
            f"The team answered:\n\n{_escaped(outcome)}\n\nIf this answers the user's question well, write {accept}. "
            "If not, write a new plan that mends it; its last step must give the complete answer."
        )
        return [*asked, Message.of("assistant", written or "(nothing)"), Message.of("user", verdict)]


def work(
    member: Member,
    conversation: Sequence[Message],
    step: Step,
    plan: Sequence[Step],
    outputs: Mapping[int, str],
) -> tuple[Message, ...]:
    """What a worker is shown: both system prompts, the conversation, the outputs it may read, its subtask.

    Outputs and subtask are appended to the user's last message, because some chat templates refuse two user turns in a row.
    An output cannot forge the marks around it.

    Args:
        member: who is asked.
        conversation: the user's, whole.
        step: what is asked; an empty subtask shows the conversation alone.
        plan: the steps so far, for the subtasks of what is read.
        outputs: of the steps in `step.access`.
    """
    messages = [message for message in conversation if message.role != "system"]
    system = "\n\n".join(
        text for text in [member.system_prompt, *(m.text for m in conversation if m.role == "system")] if text
    )
    if step.subtask or step.access:
        messages = _with_last_user(messages, _assignment(step, plan, outputs))
    if not member.sees_images:
        messages = [_without_images(message) for message in messages]
    return (*([Message.of("system", system)] if system else []), *messages)


def _assignment(step: Step, plan: Sequence[Step], outputs: Mapping[int, str]) -> str:
    shown = "".join(
        f'<output step="{read}" subtask="{_escaped(plan[read].subtask).replace(chr(34), chr(39))}">\n'
        f"{_escaped(outputs[read])}\n</output>\n\n"
        for read in step.access
    )
    seen = "You work in a team on the question above. " + (
        f"What others found so far:\n\n{shown}" if shown else "You work on your own part.\n\n"
    )
    return f"{seen}<task>\n{_escaped(step.subtask) or ANSWER}\n</task>"


def _with_last_user(messages: Sequence[Message], text: str) -> list[Message]:
    """`text` at the end of the last user turn; as a turn of its own where the conversation ends with the assistant."""
    if messages and messages[-1].role == "user":
        last = messages[-1]
        return [*messages[:-1], replace(last, parts=(*last.parts, Text("\n\n" + text)))]
    return [*messages, Message.of("user", text)]


def _without_images(message: Message) -> Message:
    if not message.has_image:
        return message
    parts: tuple[Part, ...] = tuple(
        Text(NO_IMAGE) if isinstance(part, Image) else part for part in message.parts
    )
    return replace(message, parts=parts)


def _question(conversation: Sequence[Message]) -> str:
    """The conversation as the conductor reads it: one text, pictures named, roles told where there is more than one turn."""
    plain = [_without_images(message) for message in conversation]
    if len(plain) == 1:
        return f"The user's question:\n{plain[0].text}"
    turns = "\n\n".join(f"{message.role}: {message.text}" for message in plain)
    return f"The conversation; plan the answer to its last turn:\n{turns}"


def _escaped(text: str) -> str:
    return _MARK.sub("&lt;", text)
