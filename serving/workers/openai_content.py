"""Message parts and response formats of OpenAI's API."""

from conductor.model.call import Call
from conductor.model.messages import File, Image, Text
from serving.schemas.openai import response_format
from serving.workers.cache_marks import ShowMark, no_marks
from serving.workers.images import split_data_url


def part_json(part: Text | Image | File, show_mark: ShowMark = no_marks) -> dict[str, object]:
    mark = show_mark(part.cache)
    if isinstance(part, File):
        return {"type": "file", "file": {"filename": part.name, "file_data": part.url}, **mark}
    if isinstance(part, Image):
        if part.url.startswith("data:"):
            split_data_url(part.url)  # raises here what the server would reject later
        return {"type": "image_url", "image_url": {"url": part.url, "detail": part.detail}, **mark}
    return {"type": "text", "text": part.text, **mark}


def response_format_of(call: Call) -> dict[str, object] | None:
    if call.answer_format is not None:
        return response_format(call.answer_format)
    if call.grammar is None or call.grammar.json_schema is None:
        return None
    schema = {"name": call.site.operation, "strict": True, "schema": call.grammar.json_schema}
    return {"type": "json_schema", "json_schema": schema}
