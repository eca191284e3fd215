"""Log probabilities of an answer's tokens. They are read from vLLM's outputs and aligned with the visible
text.

This module depends on the format of vLLM's outputs, but neither on the engine nor on the formats of the API
dialects.
"""

from collections.abc import Callable

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput

from conductor.model.operation import Likely, TokenLogprob

LEAST = -9999.0
"""OpenAI's value for a token that is too unlikely to report."""


class LogprobReader:
    """Reader of one answer's log probabilities. `content_ids` returns the token ids after the reasoning, if
    there is any.

    A token is returned with the chunk of text in which it begins. Tokens without visible text are not
    returned, such as those of a stop sequence, a tool call or the end of the answer.
    """

    def __init__(self, n_top: int, content_ids: Callable[[list[int]], list[int]] | None = None) -> None:
        self._n_top, self._content_ids = n_top, content_ids
        self._ids, self._pending = list[int](), list[TokenLogprob]()
        self._ahead = 0
        """Number of visible characters whose token was not returned yet."""

    def feed(self, completion: CompletionOutput, text: str) -> tuple[TokenLogprob, ...]:
        """Return the tokens that begin in `text`, the chunk's visible text, which may belong to earlier ones."""
        tokens = [_token(position, self._n_top) for position in completion.logprobs or ()]
        self._pending += self._after_thoughts(tokens, list(completion.token_ids), text)
        self._ahead += len(text)
        out = list[TokenLogprob]()
        while self._pending and self._ahead > 0:
            out.append(self._pending.pop(0))
            self._ahead -= len(out[-1].token)
        return tuple(out)

    def _after_thoughts(self, tokens: list[TokenLogprob], ids: list[int], text: str) -> list[TokenLogprob]:
        if self._content_ids is None:
            return tokens
        self._ids += ids
        try:
            n_content = len(self._content_ids(self._ids))
        except NotImplementedError:  # some of vLLM's parsers lack it; the answer begins with the first text
            n_content = 0
        if not n_content and not text:
            return []
        self._content_ids = None  # all following tokens belong to the answer
        return tokens[-n_content:]


def _token(position: dict[int, Logprob], n_top: int) -> TokenLogprob:
    """Return the token at a position with the most likely alternatives. vLLM lists the chosen token first."""
    chosen, *_ = position.values()
    ranked = sorted((each for each in position.values() if each.rank), key=lambda each: each.rank or 0)
    top = tuple(Likely(_text(each), _value(each)) for each in ranked if (each.rank or 0) <= n_top)
    return TokenLogprob(_text(chosen), _value(chosen), top)


def _text(token: Logprob) -> str:
    return token.decoded_token or ""


def _value(token: Logprob) -> float:
    return max(token.logprob, LEAST)
