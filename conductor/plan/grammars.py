"""Grammars that allow only plans that can run.

They are built from the request's pool and `max_steps`. They guarantee that each worker exists, that a step reads
only earlier steps, in strictly ascending order, and that the text ends. They are written as GBNF for xgrammar
(which vLLM uses) and, if the format is JSON, also as JSON Schema for API providers. The schema cannot express
"earlier steps only", so the parser still checks such plans.
"""

from functools import lru_cache

from conductor.model.call import Grammar
from conductor.plan.plan import Format

SUBTASK_CHARS = 240
"""Approximate limit of a subtask, in characters. It also stops small models that would never end the text."""
REASONING_WORDS = 100
"""Limit of the free text before the three lists of the `lists` format, in words."""
CHARS_PER_WORD = 6
"""Average length of a word and the space after it."""
WORD_CHARS = 24
"""Maximum length of a word, in characters, so that text without spaces ends too."""

# Words are repeated instead of characters for speed. xgrammar 0.2.8 takes 0.2 to 0.6 s of CPU per token
# (SmolLM2's vocabulary) to mask `char{0,239}`, or 2 s to compile it as a class. Repeated words with unrolled
# characters take 0.1 s once, and microseconds per token.
_STRING = (
    'string ::= "\\"" (first letters{tail} (" " word){{0,{more}}})? "\\""\n'
    'first ::= [^"\\\\\\x00-\\x20\\x7f-\\xa0\\u1680\\u2000-\\u200f\\u2028-\\u202f\\u205f\\u3000] | "\\\\" ["\\\\]\n'
    'letter ::= [^"\\\\\\x00-\\x20] | "\\\\" ["\\\\nrt]\n'
)
_FIELDS = (
    'fields ::= "{" ("\\"needs\\": " string ", ")? both\n'
    'both ::= "\\"worker\\": " worker ", \\"subtask\\": " string'
    ' | "\\"subtask\\": " string ", \\"worker\\": " worker\n'
)
"""Small conductors plan better if they write a step's needs or subtask before they choose its worker."""


def _words(word: str, letter: str) -> str:
    """Return rules for `word`: up to `WORD_CHARS` times `letter`, unrolled."""
    rules = f'{word} ::= {letter} {letter}s{WORD_CHARS - 1}\n{letter}s0 ::= ""\n'
    return rules + "".join(
        f'{letter}s{remaining} ::= "" | {letter} {letter}s{remaining - 1}\n'
        for remaining in range(1, WORD_CHARS)
    )


def _string(chars: int) -> str:
    more = max(chars // CHARS_PER_WORD - 1, 0)
    return _STRING.format(more=more, tail=WORD_CHARS - 1) + _words("word", "letter")


@lru_cache(maxsize=256)  # used for every plan, and there are few different teams
def grammar(
    format: Format,
    n_workers: int,
    max_steps: int,
    *,
    may_accept: bool = False,
    subtask_chars: int = SUBTASK_CHARS,
    thinking: bool = False,
    has_tools: bool = False,
) -> Grammar:
    """Return the grammar for the text of a plan of at least one step. Workers are numbered from 0.

    `may_accept` allows to accept the previous answer instead. `thinking` adds a thought before the steps to the
    JSON schema. `has_tools` allows `"tools": false` in a step, except in `lists`. The grammar limits a subtask's
    words, at six characters each.
    """
    words = _worker(n_workers) + _string(subtask_chars)
    if format == "lists":
        return Grammar(_lists(max_steps, may_accept) + words)
    schema = _schema(n_workers, max_steps, may_accept, thinking, has_tools)
    return Grammar(_steps(max_steps, may_accept, has_tools) + words, schema)


def _worker(n_workers: int) -> str:
    return "worker ::= " + " | ".join(f'"{number}"' for number in range(n_workers)) + "\n"


def _access(step: int) -> str:
    """Return rules for an ascending list of steps below `step`: `access3 ::= "[" (reads3_0 | ...)? "]"`."""
    heads = " | ".join(f"reads{step}_{read}" for read in range(step))
    rules = f'access{step} ::= "[]"' + (f' | "[" ({heads}) "]"' if heads else "") + "\n"
    for read in range(step):
        tails = " | ".join(f'", " reads{step}_{later}' for later in range(read + 1, step))
        rules += f'reads{step}_{read} ::= "{read}"' + (f" ({tails})?" if tails else "") + "\n"
    return rules


def _steps(max_steps: int, may_accept: bool, has_tools: bool) -> str:
    rules = "root ::= steps0" + (' | "{\\"accept\\": true}"' if may_accept else "") + "\n"
    end = ' (", \\"tools\\": false")? "}"' if has_tools else ' "}"'
    for step in range(max_steps):
        more = f' ("\\n" steps{step + 1})?' if step + 1 < max_steps else ""
        rules += f'steps{step} ::= fields ", \\"access\\": " access{step}{end}{more}\n' + _access(step)
    return rules + _FIELDS


def _lists(max_steps: int, may_accept: bool) -> str:
    def repeat(rule: str, count: int) -> str:
        return ' ", " '.join([rule] * count)

    lengths = range(0 if may_accept else 1, max_steps + 1)
    rules = "root ::= reasoning (" + " | ".join(f"plan{count}" for count in lengths) + ")\n"
    for count in lengths:
        accesses = ' ", " '.join(f"access{step}" for step in range(count))
        rules += (
            f'plan{count} ::= "model_id = [" {repeat("worker", count)} "]\\nsubtasks = [" '
            f'{repeat("string", count)} "]\\naccess_list = [" {accesses} "]"\n'
        )
    rules += "".join(_access(step) for step in range(max_steps))
    rules += f'reasoning ::= (thought (" " thought){{0,{REASONING_WORDS - 1}}} "\\n")?\n'
    rules += r"mark ::= [^=:\[\]<>\x00-\x20]" + "\n" + _words("thought", "mark")
    return rules


def _schema(
    n_workers: int, max_steps: int, may_accept: bool, thinking: bool, has_tools: bool
) -> dict[str, object]:
    fields: dict[str, object] = {
        "worker": {"type": "integer", "enum": list(range(n_workers))},
        "subtask": {"type": "string"},
        "access": {
            "type": "array",
            "items": {"type": "integer", "enum": list(range(max(max_steps - 1, 1)))},
            "maxItems": max_steps - 1,
        },
    }
    if has_tools:
        fields["tools"] = {"type": "boolean", "description": "Whether the step may call tools."}
    step: dict[str, object] = {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }
    properties: dict[str, object] = {}
    if thinking:
        properties["thinking"] = {"type": "string", "description": "A sentence or two, before the plan."}
    if may_accept:
        properties["accept"] = {"type": "boolean"}
    properties["steps"] = {"type": "array", "items": step, "maxItems": max_steps}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
