"""Lines of a batch's input, output and error files, in OpenAI's format.

If the file is not a valid list of requests, the whole batch fails before anything runs. If a single request
is invalid or not allowed, only its line fails.
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
"""Maximum number of faults that are reported for a file."""
STEP_LINES = 20
"""Number of lines that are read in one step."""
STEP_BYTES = 20_000
"""Length from which a line is a step of its own."""
STREAM = "stream: a batch writes its answers to a file. Leave it out."
BACKGROUND = "{}: a batch always runs in the background. Leave it out."


class _InputLine(BaseModel, extra="ignore"):
    custom_id: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(check_name_text)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """Request of a batch.

    Args:
        number: number of the line, from 0. Empty lines are not counted.
        custom_id: the client's id for it.
        body: body that is sent to the batch's endpoint.
    """

    number: int
    custom_id: str
    body: dict[str, Any]

    @property
    def fault(self) -> str | None:
        """Message on a field that a batch does not support. None: there is none."""
        if self.body.get("stream"):
            return STREAM
        if self.body.get("background"):  # of Responses
            return BACKGROUND.format("background")
        podium = self.body.get("podium")
        is_set = isinstance(podium, dict) and cast(dict[str, Any], podium).get("background")
        return BACKGROUND.format("podium.background") if is_set else None


class Lines:
    """Requests in a file: its bytes, and the position of each request.

    A request is parsed when it is accessed, because parsed requests take several times as much memory.

    Args:
        content: content of the file.
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
        """Add the request that begins at this position."""
        self._begins.append(begin)


def each_line(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of each line, without its line break. Empty lines are included."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        yield begin, end
        begin = end + 1


def parse_lines(content: bytes, endpoint: str, most: int) -> tuple[Lines, list[dict[str, Any]]]:
    """Return the requests in a stored file, or no requests and the faults of the file."""
    return finish(parse_in_steps(content, endpoint, most))


def parse_in_steps(content: bytes, endpoint: str, most: int) -> Steps[tuple[Lines, list[dict[str, Any]]]]:
    """Do the work of `parse_lines` in steps."""
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
                _error("too_many_lines", f"A batch may have at most {most} lines (batches.max_lines).", at)
            ]
        line = _read(text, at)
        if isinstance(line, dict):
            errors.append(line)
            continue
        if line.url != endpoint:
            errors.append(
                _error("mismatched_url", f"url must be the batch's endpoint, {endpoint}.", at, "url")
            )
        elif line.custom_id in seen:
            errors.append(_error("duplicate_custom_id", "custom_id must be unique, but an earlier line has the same.", at, "custom_id"))  # fmt: skip
        seen.add(line.custom_id)
        lines.add(begin)
    if not lines and not errors:
        errors.append(_error("empty_file", "The file has no lines. Send one JSON object per line.", None))
    return (Lines(b""), errors) if errors else (lines, [])


def _read(text: bytes, at: int) -> "_InputLine | dict[str, Any]":
    """Return a line, or an error that describes its fault."""
    try:
        return _InputLine.model_validate(orjson.loads(with_whole_escapes(text)))
    except orjson.JSONDecodeError:
        return _error("invalid_json_line", "This line is not a JSON object.", at)
    except ValidationError as exc:
        fault = exc.errors()[0]
        param = ".".join(map(str, fault["loc"])) or None
        return _error(
            "invalid_request", f"{param or 'line'}: {fault['msg'].removeprefix('Value error, ')}.", at, param
        )


def line_of_answer(batch_id: str, line: Line, status: int, run_id: str, body: Any) -> LineResult:
    """Return the result line of a request that got an HTTP answer."""
    response = {"status_code": status, "request_id": run_id, "body": body}
    return _result(batch_id, line, is_error=status >= 400, response=response, error=None)


def line_of_refusal(batch_id: str, line: Line, code: str, message: str) -> LineResult:
    """Return the result line of a request that was not sent."""
    return _result(batch_id, line, is_error=True, response=None, error={"code": code, "message": message})


def join_results(results: list[LineResult], *, errors: bool) -> bytes:
    """Return the content of an output or error file."""
    return b"".join(result.body + b"\n" for result in results if result.is_error == errors)


def _result(batch_id: str, line: Line, *, is_error: bool, response: Any, error: Any) -> LineResult:
    id = f"batch_req_{batch_id.removeprefix('batch_')}_{line.number}"
    body = {"id": id, "custom_id": line.custom_id, "response": response, "error": error}
    return LineResult(line.number, is_error, orjson.dumps(body))


def _error(code: str, message: str, line: int | None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}
