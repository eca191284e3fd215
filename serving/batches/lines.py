"""Lines of a batch's input, output and error files, in OpenAI's format.

If a line of the input file does not have this format, the whole batch fails before any request is sent. If
the request in a line is invalid or not allowed, only this line fails.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import orjson
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from conductor.model.characters import check_name_text, with_whole_escapes
from serving.batches.model import LineResult
from serving.errors import explain_fault
from serving.redaction.slices import Steps

MOST_ERRORS = 20
"""Maximum number of errors that are reported for a file."""
STEP_LINES = 20
"""Number of lines that are parsed in one step. Other tasks of the event loop can run between two steps."""
STEP_BYTES = 20_000
"""Size in bytes above which a line takes a separate step."""
STREAM = "stream is not supported in a batch, which writes its answers to a file. Remove it."
BACKGROUND = "{} is not supported in a batch, which always runs in the background. Remove it."


class _InputLine(BaseModel, extra="ignore"):
    custom_id: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(check_name_text)]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """Request of a batch.

    Args:
        number: number of the request in the file, from 0. Empty lines are not counted.
    """

    number: int
    custom_id: str
    body: dict[str, Any]

    @property
    def fault(self) -> str | None:
        """Error message for a field that a batch does not support, or None if there is no such field."""
        if self.body.get("stream"):
            return STREAM
        if self.body.get("background"):  # of Responses
            return BACKGROUND.format("background")
        podium = self.body.get("podium")
        is_set = isinstance(podium, dict) and cast(dict[str, Any], podium).get("background")
        return BACKGROUND.format("podium.background") if is_set else None


class Lines:
    """Sequence of the requests in a file, each parsed when it is accessed, because all would take several
    times its memory.
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
        """Add the request that begins at this byte of the file."""
        self._begins.append(begin)


def each_line(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the position of the begin and end of each line, without its line break. Include empty lines."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        yield begin, end
        begin = end + 1


def parse_in_steps(content: bytes, endpoint: str, most: int) -> Steps[tuple[Lines, list[dict[str, Any]]]]:
    """Parse at most `most` requests for `endpoint` in steps, so that a large file does not block the event
    loop.

    Return the requests and the errors. If there are errors, there are no requests.
    """
    lines = Lines(content)
    errors: list[dict[str, Any]] = []
    custom_ids = set[str]()
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
                _error(
                    "too_many_lines",
                    f"A batch may have at most {most} lines (batches.max_lines). Split the file.",
                    at,
                )
            ]
        line = _read(text, at)
        if isinstance(line, dict):
            errors.append(line)
            continue
        if line.url != endpoint:
            errors.append(
                _error("mismatched_url", f"url must be the batch's endpoint, {endpoint}.", at, "url")
            )
        elif line.custom_id in custom_ids:
            errors.append(_error("duplicate_custom_id", "custom_id must be unique, but an earlier line has the same one.", at, "custom_id"))  # fmt: skip
        custom_ids.add(line.custom_id)
        lines.add(begin)
    if not lines and not errors:
        errors.append(_error("empty_file", "The file is empty. Send one JSON object per line.", None))
    return (Lines(b""), errors) if errors else (lines, [])


def _read(text: bytes, at: int) -> "_InputLine | dict[str, Any]":
    """Parse a line. Return it, or the error to report if it is not valid."""
    try:
        return _InputLine.model_validate(orjson.loads(with_whole_escapes(text)))
    except orjson.JSONDecodeError:
        return _error("invalid_json_line", "This line must be a JSON object.", at)
    except ValidationError as exc:
        fault = exc.errors()[0]
        param = ".".join(map(str, fault["loc"])) or None
        return _error("invalid_request", f"{explain_fault(param or 'This line', fault)}.", at, param)


def line_of_answer(batch_id: str, line: Line, status: int, run_id: str, body: Any) -> LineResult:
    """Return the result of a request that was answered, in the format of the output file."""
    response = {"status_code": status, "request_id": run_id, "body": body}
    return _result(batch_id, line, is_error=status >= 400, response=response, error=None)


def line_of_refusal(batch_id: str, line: Line, code: str, message: str) -> LineResult:
    """Return the result of a request that was not sent, in the format of the error file."""
    return _result(batch_id, line, is_error=True, response=None, error={"code": code, "message": message})


def join_results(results: list[LineResult], *, errors: bool) -> bytes:
    """Return the content of the output file, or with `errors`, of the error file."""
    return b"".join(result.body + b"\n" for result in results if result.is_error == errors)


def _result(batch_id: str, line: Line, *, is_error: bool, response: Any, error: Any) -> LineResult:
    id = f"batch_req_{batch_id.removeprefix('batch_')}_{line.number}"
    body = {"id": id, "custom_id": line.custom_id, "response": response, "error": error}
    return LineResult(line.number, is_error, orjson.dumps(body))


def _error(code: str, message: str, line: int | None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}
