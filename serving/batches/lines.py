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
from serving.batches.model import Batch, LineResult
from serving.batches.store import BatchStore
from serving.errors import explain_fault
from serving.redaction.slices import Steps, in_turns

MOST_ERRORS = 20
"""Maximum number of errors that are reported for a file."""
STEP_LINES = 20
"""Number of lines that are parsed in one step. Other tasks of the event loop can run between two steps."""
STEP_BYTES = 20_000
"""Size in bytes above which a line takes a separate step."""
PIECE_BYTES = 4_194_304
"""Bytes of a file that are read at once, or more for a longer line. SQLite reads the whole file for each piece,
which takes 0.1 s for 50 MB.
"""
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


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """Answer to a line's request.

    Args:
        run_id: id of the run, or "" if no run was started.
        later_s: seconds after which the line can be sent again, or None if a retry is useless.
    """

    status: int
    run_id: str
    body: Any
    later_s: float | None = None


class FileGoneError(Exception):
    """The input file of a batch was deleted."""


class Lines:
    """Requests in a stored file. Only one piece of it is in memory, and a line is parsed when it is needed."""

    def __init__(self, store: BatchStore, file_id: str) -> None:
        self._store, self._file_id = store, file_id
        self._begins, self._ends = array("Q"), array("Q")
        self._piece, self._piece_begin = b"", 0

    def __len__(self) -> int:
        return len(self._begins)

    async def read(self, begin: int, n_bytes: int = PIECE_BYTES) -> bytes:
        """Return up to `n_bytes` of the file, or raise FileGoneError."""
        piece = await self._store.piece(self._file_id, begin, n_bytes)
        if not piece:
            raise FileGoneError
        return piece

    async def get(self, number: int) -> Line:
        """Return a request, or raise FileGoneError."""
        begin, end = self._begins[number], self._ends[number]
        if not self._piece_begin <= begin <= end <= self._piece_begin + len(self._piece):
            self._piece, self._piece_begin = await self.read(begin, max(PIECE_BYTES, end - begin)), begin
        text = self._piece[begin - self._piece_begin : end - self._piece_begin]
        line = orjson.loads(with_whole_escapes(text))
        return Line(number, line["custom_id"], line["body"])

    def add(self, begin: int, end: int) -> None:
        """Add the request between these bytes of the file."""
        self._begins.append(begin)
        self._ends.append(end)


def each_line(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the position of the begin and end of each line, without its line break. Include empty lines."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        yield begin, end
        begin = end + 1


async def read_lines(store: BatchStore, batch: Batch, most: int) -> tuple[Lines, list[dict[str, Any]]]:
    """Read the input file of a batch in pieces, with at most `most` requests.

    Return the requests and the errors. Use the requests only if there are no errors. Raise FileGoneError if the
    file was deleted.
    """
    file = await store.file(batch.input_file_id)
    if file is None:
        raise FileGoneError
    lines, begin, piece = Lines(store, file.id), 0, b""
    check = LineCheck(lines, batch.endpoint, most)
    while (read_bytes := begin + len(piece)) < file.n_bytes and not check.is_over:
        piece += await lines.read(read_bytes)
        end = len(piece) if begin + len(piece) >= file.n_bytes else piece.rfind(b"\n") + 1
        await in_turns(check.add_in_steps(piece[:end], begin), batch.account)
        begin, piece = begin + end, piece[end:]
    if not lines and not check.errors:
        check.errors.append(_error("empty_file", "The file is empty. Send one JSON object per line.", None))
    return lines, check.errors


class LineCheck:
    """Check of the lines of a file, piece by piece. It adds the valid ones to `lines`.

    Args:
        most: maximum number of requests.
    """

    def __init__(self, lines: Lines, endpoint: str, most: int) -> None:
        self._lines, self._endpoint, self._most = lines, endpoint, most
        self._custom_ids = set[str]()
        self._at = 0
        self.is_over = False
        """True if no more lines have to be read, because there are too many lines or errors."""
        self.errors = list[dict[str, Any]]()

    def add_in_steps(self, piece: bytes, piece_begin: int) -> Steps[None]:
        """Check the lines in a piece that begins at this byte of the file, in steps, so that a large file does
        not block the event loop.
        """
        for begin, end in each_line(piece):
            self._at += 1
            if self._at % STEP_LINES == 0 or end - begin > STEP_BYTES:
                yield
            text = piece[begin:end]
            if not text.strip():
                continue
            if len(self.errors) >= MOST_ERRORS:
                self.is_over = True
                return
            if len(self._lines) >= self._most:
                message = f"A batch may have at most {self._most} lines (batches.max_lines). Split the file."
                self.errors = [_error("too_many_lines", message, self._at)]
                self.is_over = True
                return
            self._add(text, piece_begin + begin)

    def _add(self, text: bytes, begin: int) -> None:
        line = _read(text, self._at)
        if isinstance(line, dict):
            self.errors.append(line)
            return
        if line.url != self._endpoint:
            message = f"url must be the batch's endpoint, {self._endpoint}."
            self.errors.append(_error("mismatched_url", message, self._at, "url"))
        elif line.custom_id in self._custom_ids:
            message = "custom_id must be unique, but an earlier line has the same one."
            self.errors.append(_error("duplicate_custom_id", message, self._at, "custom_id"))
        self._custom_ids.add(line.custom_id)
        self._lines.add(begin, begin + len(text))


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


def _result(batch_id: str, line: Line, *, is_error: bool, response: Any, error: Any) -> LineResult:
    id = f"batch_req_{batch_id.removeprefix('batch_')}_{line.number}"
    body = {"id": id, "custom_id": line.custom_id, "response": response, "error": error}
    return LineResult(line.number, is_error, orjson.dumps(body))


def _error(code: str, message: str, line: int | None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}
