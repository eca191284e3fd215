"""Prompts for conductors and workers.

Untrusted texts in them are enclosed in tags that are called marks (`prompt_parts.py`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.messages import NO_TOOLS, Message, Part, Text, ToolCall, ToolResult, Toolset
from conductor.model.usage import Price
from conductor.model.worker import PoolMember
from conductor.plan.instructions import HOW_TO_ACCEPT, Layout, instructions, role
from conductor.plan.plan import Step
from conductor.plan.prompt_parts import (
    describe_attachments,
    enclose,
    fit,
    mark_key,
    read_marked,
    with_names,
    with_stable_system,
)

CALL, RESULT = "tool_call", "tool_result"
"""Names of the marks around a tool call and around its result."""


MOST_TOOLS, DESCRIPTION_CHARS = 64, 160
"""Maximum number of tools in the conductor's prompt, and of characters of each description."""


def describe_tools(tools: Toolset, layout: Layout) -> str:
    """Return the description of the client's tools for the conductor, or "" if there are none."""
    offered = tools.offered
    if not offered:
        return ""
    lines = [f"- {tool.name}: {_first_line(tool.description)}".rstrip(": ") for tool in offered[:MOST_TOOLS]]
    more = len(offered) - MOST_TOOLS
    lines += [f"- and {more} more"] if more > 0 else []
    how = "" if layout == "lists" else ' Write "tools": false in a step that must not call tools.'
    return (
        "The workers can call the user's tools, more than once. A worker sees only the results of its own calls."
        f"{how}\n" + "\n".join(lines)
    )


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= DESCRIPTION_CHARS else line[: DESCRIPTION_CHARS - 1] + "…"


def with_tools_as_text(messages: Iterable[Message]) -> list[Message]:
    """Convert tool calls and results to text between marks, without native turns and reasoning."""
    messages = list(messages)
    if not any(
        message.native or message.thoughts or message.tool_calls or message.tool_results
        for message in messages
    ):
        return messages
    key = mark_key(*(message.text for message in messages), *_texts(messages))
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_as_text(message, key, names) for message in messages]


def _texts(messages: Iterable[Message]) -> Iterable[str]:
    for message in messages:
        for call in message.tool_calls:
            yield from (call.name, call.arguments)
        for result in message.tool_results:
            yield result.text


def _as_text(message: Message, key: str, names: dict[str, str]) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ToolCall():
                parts.append(Text(enclose(CALL, key, part.arguments, tool=part.name), part.cache))
            case ToolResult():
                attributes = {"tool": names.get(part.id, "?")} | ({"error": "true"} if part.is_error else {})
                parts.append(Text(enclose(RESULT, key, part.text, **attributes), part.cache))
                parts += [each for each in part.parts if not isinstance(each, Text)]
            case _:
                parts.append(part)
    role = "user" if message.role == "tool" else message.role
    return replace(message, role=role, parts=tuple(parts), native=None, thoughts={})


WORKER = "{number}: {card}{facts}"
"""Template of a worker's description. The facts, if any, are a line of their own."""

FALLBACK_CARD = "a general language model"
ANSWER = "Answer the question."
"""Task of a step without a subtask that reads another step's output."""
OUTPUT = "output"
"""Name of the marks around a step's output."""
_FILL = re.compile(r"\{(number|card|facts)\}")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompt texts that settings may replace.

    Args:
        conductor: role and task of the conductor. `{max_steps}` is replaced by the request's limit.
        steps, lists: instructions for the two formats, with examples. The built-in texts of `instructions.py`
            replace these and `conductor` if they are None.
        worker: template of a worker's description, with `{number}`, `{card}` and `{facts}` (model, price, speed,
            context, images).
    """

    conductor: str | None = None
    steps: str | None = None
    lists: str | None = None
    worker: str = WORKER

    def plan(
        self,
        layout: Layout,
        pool: Sequence[PoolMember],
        max_steps: int,
        conversation: Sequence[Message],
        tools: Toolset = NO_TOOLS,
        note: str = "",
    ) -> list[Message]:
        """Return the prompt for writing a plan: the instructions, the numbered workers, the question, and `note`.

        What changes from turn to turn comes last, so that the conductor's server can cache the rest.
        """
        own = self.lists if layout == "lists" else self.steps
        how = instructions(layout, len(pool), max_steps, _cheapest(pool)) if own is None else own
        what = (
            role(max_steps)
            if self.conductor is None
            else self.conductor.replace("{max_steps}", str(max_steps))
        )
        team = "\n".join(
            self._line(number, member, has_tools=bool(tools)) for number, member in enumerate(pool)
        )
        system = f"{what}\n{how}\nThe team:\n{team}"
        sections = (
            describe_tools(tools, layout),
            describe_attachments(conversation, pool),
            _question(conversation),
            note,
        )
        parts = [part for part in sections if part]
        return [Message.of("system", system), Message.of("user", "\n\n".join(parts))]

    def repair(self, prompt: Sequence[Message], plan_text: str, fault: str) -> list[Message]:
        """Return the prompt for a new plan after a plan that cannot run because of `fault`."""
        key = mark_key(*(message.text for message in prompt), fault)
        complaint = (
            f"This plan cannot run:\n\n{enclose('reason', key, fault)}\n\n"
            "Write the whole plan again, in the same format."
        )
        return [*prompt, Message.of("assistant", plan_text or "(nothing)"), Message.of("user", complaint)]

    def revise(
        self, prompt: Sequence[Message], plan_text: str, outcome: str, layout: Layout
    ) -> list[Message]:
        """Return the prompt for the next round (arXiv 2512.04388, 3.2): accept the outcome or plan again."""
        key = mark_key(*(message.text for message in prompt), plan_text, outcome)
        verdict = (
            f"The team answered:\n\n{enclose('outcome', key, outcome)}\n\n"
            f"If this answers the user's question well, {HOW_TO_ACCEPT[layout]}. "
            "If not, write a new plan that fixes it; its last step must give the complete answer."
        )
        return [*prompt, Message.of("assistant", plan_text or "(nothing)"), Message.of("user", verdict)]

    def _line(self, number: int, member: PoolMember, *, has_tools: bool) -> str:
        # A conductor that was trained with its own prompt knows cards, but no names of models.
        model = member.model if self.conductor is None else ""
        facts = _facts(member, model, has_tools=has_tools)
        fills = {"number": str(number), "card": _card(member), "facts": facts}
        return _FILL.sub(lambda name: fills[name[1]], self.worker)


@dataclass(frozen=True, slots=True)
class WorkerPrompt:
    """Prompt of a worker, and the key of the marks in the prompt. The key is empty if there are no marks."""

    messages: tuple[Message, ...]
    mark_key: str = ""


def work(
    member: PoolMember,
    conversation: Sequence[Message],
    step: Step,
    plan: Sequence[Step],
    outputs: Mapping[int, str],
) -> WorkerPrompt:
    """Return the prompt for a worker to run `step`.

    It consists of the system prompts of the worker and the user, the conversation, the outputs that the step
    reads, and its subtask. Outputs and subtask are appended to the user's last message, because some chat
    templates reject two user turns in a row. Only outputs are enclosed in marks, and no sentence is added,
    because small models repeat text that frames their task. The subtasks in `plan`, the steps so far, are shown
    next to the outputs. Without a subtask and outputs, the prompt is the conversation alone.
    """
    conversation = fit(conversation, member)
    messages = [message for message in conversation if message.role != "system"]
    system = _system(member, conversation)
    key = ""
    if step.access:
        subtasks = [plan[read].subtask for read in step.access]
        texts = (*(message.text for message in (*conversation, *system)), step.subtask, *subtasks)
        key = mark_key(*texts, *(outputs[read] for read in step.access))
    if step.subtask or step.access:
        messages = _with_last_user(messages, _assignment(step, plan, outputs, key))
    return WorkerPrompt((*system, *messages), key)


def _system(member: PoolMember, conversation: Sequence[Message]) -> list[Message]:
    """Return the system prompts of worker and user as one message, if any, in several parts if one has a
    cache mark.
    """
    prompts = [Message.of("system", member.system_prompt), *(m for m in conversation if m.role == "system")]
    nonempty = [prompt for prompt in prompts if prompt.text]
    parts = tuple(part for prompt in nonempty for part in (Text(""), *prompt.parts))[1:]
    whole = Message("system", parts)
    if not parts:
        return []
    return [whole] if any(part.cache for part in parts) else [Message.of("system", whole.text)]


def describe_failure(error: WorkerError) -> str:
    """Return the text that replaces the output of a step that failed and was skipped."""
    return f"[this step failed: {error.message}]"


def read_assignment(text: str, key: str) -> tuple[list[str], str]:
    """Extract the outputs and the task that `work` added to a turn, for workers that are programs. Only marks
    with `key` count, so that no other text is taken for an output.
    """
    outputs, task = read_marked(OUTPUT, key, text) if key else ([], text)
    return outputs, task.strip()


def _assignment(step: Step, plan: Sequence[Step], outputs: Mapping[int, str], key: str) -> str:
    output_blocks = (
        enclose(OUTPUT, key, outputs[read], step=str(read), subtask=plan[read].subtask or ANSWER)
        for read in step.access
    )
    return "\n\n".join([*output_blocks, step.subtask or ANSWER])


def _with_last_user(messages: Sequence[Message], text: str) -> list[Message]:
    """Append `text` to the last turn, or add it as a new turn if the last one is not the user's."""
    if messages and messages[-1].role == "user":
        last = messages[-1]
        return [*messages[:-1], replace(last, parts=(*last.parts, Text("\n\n" + text)))]
    return [*messages, Message.of("user", text)]


TO_THE_LAST_TURN = "The conversation; plan the answer to its last turn:\n"
"""Text before the conversation in a plan's prompt. A single turn has another text."""


def split_at_turns(text: str) -> list[str]:
    """Split the user's turn of a plan's prompt. The parts together are `text`.

    Each part ends with a turn of the user, except the last part if a note follows the conversation. The next plan's
    prompt begins with the same parts, and has more of them. Without an earlier turn, `text` is the only part.
    """
    key = re.search(rf"{TO_THE_LAST_TURN}<turn-(\w+) ", text)
    if key is None:
        return [text]
    ends = re.split(rf'(?<=</turn-{key[1]}>)(?!\n\n<turn-{key[1]} role="user">)', text)
    return [part for part in ends if part]


def _question(conversation: Sequence[Message]) -> str:
    """Return the conversation as one text for the conductor. Marks enclose its turns, and attachments are named."""
    plain = with_names(with_stable_system(conversation))
    if len(plain) == 1:
        return f"The user's question:\n{plain[0].text}"
    key = mark_key(*(message.text for message in plain))
    turns = "\n\n".join(enclose("turn", key, message.text, role=message.role) for message in plain)
    return TO_THE_LAST_TURN + turns


def _card(member: PoolMember) -> str:
    """Return the worker's card on one line, so that it cannot imitate another worker's entry."""
    return " ".join(member.card.split()) or FALLBACK_CARD


def _facts(member: PoolMember, model: str, *, has_tools: bool) -> str:
    """Return a line of known facts of a worker, or "". It says that a worker cannot call tools only if the
    request has some, as in training.
    """
    facts = [
        " ".join(model.split()),
        _price(member.price) if member.price else "",
        f"{member.tokens_per_s:g} tokens/s" if member.tokens_per_s else "",
        f"context of {member.context_tokens:,} tokens" if member.context_tokens else "",
        "sees images" if member.sees_images else "",
        "cannot call tools" if has_tools and member.calls_tools is False else "",
    ]
    text = "; ".join(fact for fact in facts if fact)
    return f"\n   ({text})" if text else ""


def _cheapest(pool: Sequence[PoolMember]) -> int | None:
    """Return the number of the worker with the lowest input plus output price, or None if none is known."""
    prices = {
        number: member.price.input_usd_per_mtok + member.price.output_usd_per_mtok
        for number, member in enumerate(pool)
        if member.price
    }
    return min(prices, key=prices.__getitem__) if prices else None


def _price(price: Price) -> str:
    if not price.input_usd_per_mtok and not price.output_usd_per_mtok:
        return "costs nothing"
    return f"${price.input_usd_per_mtok:f} in, ${price.output_usd_per_mtok:f} out per million tokens"
