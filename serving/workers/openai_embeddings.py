"""OpenAI's embeddings: the request, and its answer read as one line a vector.

The wire: https://platform.openai.com/docs/api-reference/embeddings. Base64 is asked for, unless the
client wants numbers; what comes is read either way.
"""

from typing import Any, cast

from conductor.model.call import Call
from conductor.model.reply import Delta, FinishReason
from conductor.model.worker import decode, encode
from serving.workers.chat_chunks import fields
from serving.workers.usage import UsageCheck, integer

MOST_VECTOR_BYTES = 256 * 2**10
"""Of an answer for each text: 8,192 numbers written out take less."""
MOST_BYTES = 128 * 2**20
"""Of an answer, however many texts there are."""


def most_bytes(call: Call) -> int:
    """How long an answer may be."""
    return min(MOST_BYTES, MOST_VECTOR_BYTES * (len(call.messages) + 4))


def embedding_request(model: str, call: Call) -> dict[str, Any]:
    """The body: a text for each message."""
    body: dict[str, Any] = {
        "model": model,
        "input": [message.text for message in call.messages],
        "encoding_format": call.sampling.options.encoding_format or "base64",
    }
    dimensions = call.sampling.options.dimensions
    return body if dimensions is None else body | {"dimensions": dimensions}


def embedding_delta(answer: object, call: Call, check: UsageCheck) -> Delta:
    """All of the answer as one piece.

    Raises:
        ValueError: it does not hold a vector for each message, all of one length.
    """
    said = fields(answer)
    data = said.get("data")
    rows = [fields(row) for row in cast(list[object], data)] if isinstance(data, list) else []
    by_index = {_index(row, at): row.get("embedding") for at, row in enumerate(rows)}
    vectors = [_vector(by_index.get(index)) for index in range(len(call.messages))]
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("its vectors are of several lengths")
    model, usage = said.get("model"), fields(said.get("usage"))
    read = check.usage(check.count("prompt_tokens", usage.get("prompt_tokens")), 0, None, None)
    return check.delta(
        Delta(
            "\n".join(vectors),
            finish=FinishReason.STOP,
            usage=read,
            cost_usd=check.cost_usd(usage.get("cost")),
            model=model if isinstance(model, str) and model else None,
        )
    )


def _index(row: dict[str, object], at: int) -> int:
    """The number of a row; its place where its server does not count."""
    number = integer(row.get("index"))
    return at if number is None else number


def _vector(said: object) -> str:
    """A vector as text."""
    if isinstance(said, str):
        decode(said)
        return said
    values = cast(list[object], said) if isinstance(said, list) else []
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers and len(numbers) == len(values):
        return encode(numbers)
    raise ValueError("a vector is missing")
