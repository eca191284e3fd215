"""How probable the tokens of an answer were, as vLLM says it, put beside the text that is shown of them.

Knows vLLM's outputs; does not know the engine, nor how a dialect writes them.
"""

from collections.abc import Callable

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput

from conductor.model.operation import Likely, TokenLogprob

LEAST = -9999.0
"""OpenAI's number for what is too unlikely to say."""


class LogprobReader:
    """Reads one answer. A token goes out with the piece of text that it begins in: tokens of which no text is shown,
    as those of a stop sequence, of a call or the one that ends the answer, never do.

    Args:
        n_top: how many of the likeliest tokens are told in each place.
        content_ids: those of all tokens so far that come after the thoughts; None where the model does not think.
    """

    def __init__(self, n_top: int, content_ids: Callable[[list[int]], list[int]] | None = None) -> None:
        self._n_top, self._content_ids = n_top, content_ids
        self._ids, self._pending = list[int](), list[TokenLogprob]()
        self._ahead = 0
        """How many more characters were shown than the tokens that went out have."""

    def feed(self, completion: CompletionOutput, text: str) -> tuple[TokenLogprob, ...]:
        """The tokens that begin in `text`.

        Args:
            completion: the next piece.
            text: what is shown with it, which may be of earlier tokens.
        """
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
        except NotImplementedError:  # some of vLLM's parsers: the first text tells
            n_content = 0
        if not n_content and not text:
            return []
        self._content_ids = None  # from here on all of it is the answer
        return tokens[-n_content:]


def _token(position: dict[int, Logprob], n_top: int) -> TokenLogprob:
    """The token of a place, which vLLM puts first, and the likeliest ones."""
    chosen, *_ = position.values()
    ranked = sorted((each for each in position.values() if each.rank), key=lambda each: each.rank or 0)
    top = tuple(Likely(_text(each), _value(each)) for each in ranked if (each.rank or 0) <= n_top)
    return TokenLogprob(_text(chosen), _value(chosen), top)


def _text(token: Logprob) -> str:
    return token.decoded_token or ""


def _value(token: Logprob) -> float:
    return max(token.logprob, LEAST)
