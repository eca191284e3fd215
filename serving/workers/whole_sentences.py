"""Answers that end with a whole sentence although their model reached its limit of tokens.

Small models often write until their limit, and stop within a sentence. The last quarter of such an answer is held back
until a sentence or a line is complete, and the incomplete rest is dropped. Usage and cost still count all tokens.
"""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.reply import Delta, FinishReason

END = re.compile(r"""[.!?…]["'”’)\]*_]*(?=\s)|[。！？]|\n""")
"""End of a sentence or a line, unless `NO_END` matches before it. A number such as 3.14 is none."""
LAST_END = re.compile(END.pattern.replace(r"\s", r"\s|$"))
"""The same at the end of the answer, where a period may be the last character."""
NO_END = re.compile(
    r"(?:(?:^|\n|[.!?:;*_]\s)[ \t>*_]*(?:\d{1,3}|[A-Za-z])|\b(?:[A-Z]|e\.g|i\.e|Mr|Mrs|Ms|Dr|Prof|St|Mt|No|vs|etc|approx|cf|al))\.$"
)
"""Number of a list item, an initial or an abbreviation at the end of a text."""
FENCE = "```"


def is_prose(call: Call) -> bool:
    """Return whether the answer is plain text, so that a part of it may be dropped."""
    is_bound = call.grammar or call.answer_format or call.tools or call.prefix
    return not is_bound and call.sampling.options.top_logprobs is None


async def whole_sentences(deltas: AsyncGenerator[Delta], most_tokens: int) -> AsyncGenerator[Delta]:
    """Yield `deltas`, without an incomplete last sentence if the answer is cut off at `most_tokens`.

    An answer without a complete sentence in its last quarter, or with an open code block, is left as it is.
    """
    rest, n_fences, has_ended = "", 0, False
    first_late = most_tokens - most_tokens // 4
    async with aclosing(deltas):
        async for delta in deltas:
            text, is_cut = rest + delta.text, delta.finish is FinishReason.LENGTH
            is_near = delta.usage is not None and delta.usage.output_tokens > first_late
            shown = text
            if is_cut or (is_near and not delta.finish):
                ends = _ends(text, LAST_END if is_cut else END)
                has_ended = has_ended or bool(ends)
                is_code = (n_fences + text.count(FENCE)) % 2 == 1
                if not (is_cut and (is_code or not has_ended)):
                    shown = text[: ends[-1]] if ends else ""
            rest = text[len(shown) :]
            n_fences += shown.count(FENCE)
            yield delta if shown == delta.text else replace(delta, text=shown)


def _ends(text: str, pattern: re.Pattern[str]) -> list[int]:
    """Return the offsets after the sentences and lines of `text`."""
    ends = [each.end() for each in pattern.finditer(text)]
    return [end for end in ends if not NO_END.search(text[max(0, end - 16) : end])]
