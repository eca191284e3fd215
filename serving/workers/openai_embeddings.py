"""Requests and answers of OpenAI's embeddings API. An answer is converted to text with one vector per line.

API: https://platform.openai.com/docs/api-reference/embeddings. Requests ask for base64 unless the client wants numbers.
Answers may have either form.
"""

from typing import Any, cast

from conductor.model.call import Call
from conductor.model.operation import read_vector, vector_text
from conductor.model.reply import Delta, FinishReason
from serving.workers.chat_chunks import fields
from serving.workers.usage import UsageCheck, integer

MOST_VECTOR_BYTES = 256 * 2**10
"""Maximum size of the answer for each text. A vector of 8,192 numbers as JSON is shorter."""
MOST_BYTES = 128 * 2**20
"""Maximum size of a whole answer."""


def most_bytes(call: Call) -> int:
    return min(MOST_BYTES, MOST_VECTOR_BYTES * (len(call.messages) + 4))


def embedding_request(model: str, call: Call) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "input": [message.text for message in call.messages],
        "encoding_format": call.sampling.options.encoding_format or "base64",
    }
    dimensions = call.sampling.options.dimensions
    return body if dimensions is None else body | {"dimensions": dimensions}


def embedding_delta(answer: object, call: Call, check: UsageCheck) -> Delta:
    """Convert an answer to one delta with all vectors of equal length and the usage."""
    body = fields(answer)
    data = body.get("data")
    rows = [fields(row) for row in cast(list[object], data)] if isinstance(data, list) else []
    by_index = {_index(row, at): row.get("embedding") for at, row in enumerate(rows)}
    vectors = [_vector(by_index.get(index)) for index in range(len(call.messages))]
    if len({len(vector) for vector in vectors}) > 1:
        raise ValueError("the vectors differ in length")
    model, reported = body.get("model"), fields(body.get("usage"))
    usage = check.usage(check.count("prompt_tokens", reported.get("prompt_tokens")), 0, None, None)
    return check.delta(
        Delta(
            "\n".join(vectors),
            finish=FinishReason.STOP,
            usage=usage,
            cost_usd=check.cost_usd(reported.get("cost")),
            model=model if isinstance(model, str) and model else None,
        )
    )


def _index(row: dict[str, object], at: int) -> int:
    """Return the index of a row, or its position if the server sends no index."""
    number = integer(row.get("index"))
    return at if number is None else number


def _vector(value: object) -> str:
    if isinstance(value, str):
        read_vector(value)
        return value
    values = cast(list[object], value) if isinstance(value, list) else []
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if numbers and len(numbers) == len(values):
        return vector_text(numbers)
    raise ValueError("a vector is missing")
