"""The lines of a batch's input, and those of its output and error files, in OpenAI's form.

A file that is no list of requests fails the whole batch before anything is run; what a dialect or a policy has
against one request is that line's own error.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from conductor.model.characters import check_name_text, with_whole_escapes
from serving.batches.model import LineResult
from serving.redaction.slices import Steps, finish

MOST_ERRORS = 20
"""Faults of one file that are told."""
STEP_LINES = 20
"""Read in one step."""
STEP_BYTES = 20_000
"""A line that is longer is a step of its own."""
STREAM = "stream: the answer of a batch is a file. Leave it out."
BACKGROUND = "{}: a batch is in the background as it is. Leave it out."


class _InputLine(BaseModel, extra="ignore"):
    custom_id: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(check_name_text)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch.

    Args:
        number: of the line, from 0; empty ones are not counted.
        custom_id: the client's own name for it.
        body: what is sent to the batch's endpoint.
    """

    number: int
    custom_id: str
    body: dict[str, Any]

    @property
    def fault(self) -> str | None:
        """What a batch cannot give of what it asks for; None: nothing."""
        if self.body.get("stream"):
            return STREAM
        if self.body.get("background"):  # of Responses
            return BACKGROUND.format("background")
        podium = self.body.get("podium")
        is_told = isinstance(podium, dict) and cast(dict[str, Any], podium).get("background")
        return BACKGROUND.format("podium.background") if is_told else None


class Lines:
    """The requests in a file: its bytes, and where each begins. One is parsed when it is asked for, because parsed
    they take several times as much memory.

    Args:
        content: of the file.
    """

    def __init__(self, content: bytes) -> None:
        self._content, self._begins = content, array("Q")

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, number: int) -> Line:
        begin = self._begins[number]
        end = self._content.find(b"\n", begin)
        text = self._content[begin : len(self._content) if end < 0 else end]
        line = orjson.loads(with_whole_escapes(text))
        return Line(number, line["custom_id"], line["body"])

    def add(self, begin: int) -> None:
        """The next one begins there."""
        self._begins.append(begin)


def each_line(content: bytes) -> Iterator[tuple[int, int]]:
    """Where each line of `content` begins and ends, empty ones and their ends left out."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        yield begin, end
        begin = end + 1


def parse_lines(content: bytes, endpoint: str, most: int) -> tuple[Lines, list[dict[str, Any]]]:
    """The requests in a file as it is kept, and what is wrong with it; where anything is, none of them may be run."""
    return finish(parse_in_steps(content, endpoint, most))


def parse_in_steps(content: bytes, endpoint: str, most: int) -> Steps[tuple[Lines, list[dict[str, Any]]]]:
    """As `parse_lines`, in steps."""
    lines = Lines(content)
    errors: list[dict[str, Any]] = []
    seen = set[str]()
    for at, (begin, end) in enumerate(each_line(content), 1):
        if at % STEP_LINES == 0 or end - begin > STEP_BYTES:
            yield
        text = content[begin:end]
        if not text.strip():
            continue
        if len(errors) >= MOST_ERRORS:
            break
        if len(lines) >= most:
            return Lines(b""), [
                _error("too_many_lines", f"A batch has {most} lines at most (batches.max_lines).", at)
            ]
        line = _read(text, at)
        if isinstance(line, dict):
            errors.append(line)
            continue
        if line.url != endpoint:
            errors.append(_error("mismatched_url", f"url: this batch's endpoint is {endpoint}.", at, "url"))
        elif line.custom_id in seen:
            errors.append(_error("duplicate_custom_id", "custom_id: an earlier line has the same.", at, "custom_id"))  # fmt: skip
        seen.add(line.custom_id)
        lines.add(begin)
    if not lines and not errors:
        errors.append(_error("empty_file", "The file has no lines. Send one JSON object a line.", None))
    return (Lines(b""), errors) if errors else (lines, [])


def _read(text: bytes, at: int) -> "_InputLine | dict[str, Any]":
    """A line, or what is wrong with it."""
    try:
        return _InputLine.model_validate(orjson.loads(with_whole_escapes(text)))
    except orjson.JSONDecodeError:
        return _error("invalid_json_line", "This line is no JSON object.", at)
    except ValidationError as exc:
        fault = exc.errors()[0]
        param = ".".join(map(str, fault["loc"])) or None
        return _error(
            "invalid_request", f"{param or 'line'}: {fault['msg'].removeprefix('Value error, ')}.", at, param
        )


def line_of_answer(batch_id: str, line: Line, status: int, run_id: str, body: Any) -> LineResult:
    """The line of a request that got an HTTP answer."""
    response = {"status_code": status, "request_id": run_id, "body": body}
    return _result(batch_id, line, is_error=status >= 400, response=response, error=None)


def line_of_refusal(batch_id: str, line: Line, code: str, message: str) -> LineResult:
    """The line of a request that was not sent."""
    return _result(batch_id, line, is_error=True, response=None, error={"code": code, "message": message})


def join_results(results: list[LineResult], *, errors: bool) -> bytes:
    """An output or an error file."""
    return b"".join(result.body + b"\n" for result in results if result.is_error == errors)


def _result(batch_id: str, line: Line, *, is_error: bool, response: Any, error: Any) -> LineResult:
    id = f"batch_req_{batch_id.removeprefix('batch_')}_{line.number}"
    body = {"id": id, "custom_id": line.custom_id, "response": response, "error": error}
    return LineResult(line.number, is_error, orjson.dumps(body))


def _error(code: str, message: str, line: int | None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}
