"""Reply of a worker that is a program: the whole text at once."""

from collections.abc import AsyncGenerator
from decimal import Decimal

from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage


async def text_reply(
    text: str, model: str, usage: Usage | None = None, cost_usd: Decimal | None = None
) -> AsyncGenerator[Delta]:
    """Yield `text` as one delta, then the end."""
    yield Delta(text, model=model)
    yield Delta(finish=FinishReason.STOP, usage=usage, cost_usd=cost_usd, model=model)
