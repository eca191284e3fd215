"""OpenAI's Embeddings as a dialect: one call to the worker that `model` names.

Wire format: https://platform.openai.com/docs/api-reference/embeddings/create.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from conductor.model.call import Sampling
from conductor.model.operation import WireOptions, read_vector
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId, Dialect, Encoder
from serving.api.dialects.chat.schema import NotedFields
from serving.api.dialects.prompts import Texts, messages
from serving.api.dialects.read_body import read_body
from serving.api.record_json import model_name, summary
from serving.api.request import ApiRequest, PodiumField


class EmbeddingsRequest(NotedFields):
    """Body of `POST /v1/embeddings`."""

    model: str
    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=65_536)] | None = None
    podium: PodiumField


class EmbeddingsDialect(Dialect):
    """OpenAI's Embeddings. They cannot be streamed."""

    def parse(self, body: bytes) -> ApiRequest:
        request = read_body(EmbeddingsRequest, body)
        options = WireOptions(
            dimensions=request.dimensions,
            encoding_format="float" if request.encoding_format == "float" else None,
        )
        return ApiRequest(
            model=request.model,
            conversation=messages(request.input),
            # The least that is allowed: embeddings have no output tokens, so none should be reserved.
            sampling=Sampling(max_output_tokens=1, options=options),
            effort=None,
            podium=request.podium,
            stream=False,
            include_usage=False,
            operation="embeddings",
            as_base64=request.encoding_format == "base64",
            left_out=request.noted,
        )

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        record = records.record
        vectors = record.answer.split("\n")
        used = record.usage
        return {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": each if request.as_base64 else read_vector(each),
                }
                for index, each in enumerate(vectors)
            ],
            "model": model_name(record),
            "usage": {"prompt_tokens": used.input_tokens, "total_tokens": used.total_tokens},
            "podium": summary(record, records.inner, trace=request.podium.trace),
        }

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> Encoder:
        raise AssertionError("embeddings are not streamed")
