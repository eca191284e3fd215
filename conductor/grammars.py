"""Grammars under which a model can only write plans that run.

They are built from the request's pool and its `max_steps`, so that worker numbers exist, reads point backwards and strictly
ascend, and the text ends. Written as GBNF for xgrammar (what vLLM decodes with) and, where the format is JSON, as the JSON
schema that API providers take; the schema cannot say "backwards only", so their plans are still checked by the parser.
"""

from conductor.formats import Format
from conductor.worker import Grammar

SUBTASK_CHARS = 240
"""A subtask is an instruction, not an essay; a small model that never stops is cut here by the grammar."""
REASONING_CHARS = 600
"""Free text before the three lists of the `lists` format."""

_STRING = (
    'string ::= "\\"" [^"\\\\\\x00-\\x20] char{{0,{chars}}} "\\""\n'
    'char ::= [^"\\\\\\x00-\\x1f] | "\\\\" ["\\\\/bfnrt]\n'
)


def grammar(
    format: Format,
    n_workers: int,
    max_steps: int,
    *,
    may_accept: bool = False,
    subtask_chars: int = SUBTASK_CHARS,
) -> Grammar:
    """The grammar of `format`.

    Args:
        format: which of the two.
        n_workers: workers are the numbers below it.
        max_steps: at most so many steps, at least one.
        may_accept: whether the text may keep the answer of the round before instead.
        subtask_chars: no subtask is longer.
    """
    words = _worker(n_workers) + _STRING.format(chars=subtask_chars - 1)
    if format == "lists":
        return Grammar(_lists(max_steps, may_accept) + words)
    return Grammar(_steps(max_steps, may_accept) + words, _schema(n_workers, max_steps, may_accept))


def _worker(n_workers: int) -> str:
    return "worker ::= " + " | ".join(f'"{number}"' for number in range(n_workers)) + "\n"


def _access(step: int) -> str:
    """Rules for a strictly ascending list of steps below `step`: `access3 ::= "[" (reads3_0 | ...)? "]"`."""
    heads = " | ".join(f"reads{step}_{read}" for read in range(step))
    rules = f'access{step} ::= "[]"' + (f' | "[" ({heads}) "]"' if heads else "") + "\n"
    for read in range(step):
        tails = " | ".join(f'", " reads{step}_{later}' for later in range(read + 1, step))
        rules += f'reads{step}_{read} ::= "{read}"' + (f" ({tails})?" if tails else "") + "\n"
    return rules


def _steps(max_steps: int, may_accept: bool) -> str:
    rules = "root ::= steps0" + (' | "{\\"accept\\": true}"' if may_accept else "") + "\n"
    for step in range(max_steps):
        more = f' ("\\n" steps{step + 1})?' if step + 1 < max_steps else ""
        fields = f'"{{\\"worker\\": " worker ", \\"subtask\\": " string ", \\"access\\": " access{step} "}}"'
        rules += f"steps{step} ::= {fields}{more}\n" + _access(step)
    return rules


def _lists(max_steps: int, may_accept: bool) -> str:
    def repeated(rule: str, count: int) -> str:
        return ' ", " '.join([rule] * count)

    lengths = range(0 if may_accept else 1, max_steps + 1)
    rules = "root ::= reasoning (" + " | ".join(f"plan{count}" for count in lengths) + ")\n"
    for count in lengths:
        accesses = ' ", " '.join(f"access{step}" for step in range(count))
        rules += (
            f'plan{count} ::= "model_id = [" {repeated("worker", count)} "]\\nsubtasks = [" '
            f'{repeated("string", count)} "]\\naccess_list = [" {accesses} "]"\n'
        )
    rules += "".join(_access(step) for step in range(max_steps))
    rules += f'reasoning ::= ([^=:\\[\\]\\n<>\\x00-\\x1f]{{1,{REASONING_CHARS}}} "\\n")?\n'
    return rules


def _schema(n_workers: int, max_steps: int, may_accept: bool) -> dict[str, object]:
    step: dict[str, object] = {
        "type": "object",
        "properties": {
            "worker": {"type": "integer", "enum": list(range(n_workers))},
            "subtask": {"type": "string"},
            "access": {
                "type": "array",
                "items": {"type": "integer", "enum": list(range(max(max_steps - 1, 1)))},
            },
        },
        "required": ["worker", "subtask", "access"],
        "additionalProperties": False,
    }
    steps = {"type": "array", "items": step}
    properties: dict[str, object] = {"steps": steps}
    if may_accept:
        properties = {"accept": {"type": "boolean"}, "steps": steps}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
