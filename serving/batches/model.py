"""Stored files and batches. Times are microseconds since 1970 (UTC)."""

from dataclasses import dataclass, field
from typing import Any, Literal

from conductor.run.record import Account

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]  # fmt: skip
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses of batches that have not ended."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Description of a stored file, without its content.

    Args:
        purpose: `batch` for the input of a batch, `batch_output` for its results, or `user_data` for files to
            which requests refer.
        name: file name that the client chose.
        drop_us: time when the file is deleted.
    """

    id: str
    account: Account
    purpose: str
    name: str
    n_bytes: int
    made_us: int
    drop_us: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Batch of requests.

    Args:
        account: account that pays for the requests, and whose policies apply to them.
        owner: id of the replica that works on the batch.
        endpoint: endpoint to which each request is sent.
        expires_us: time after which no more requests are started.
        drop_us: time when the batch is deleted.
        stamps: time when each status was reached.
        total: number of requests, or 0 if they are not counted yet.
        completed, failed: number of successful and of failed requests. Both are 0 until the batch has ended.
        output_file_id, error_file_id: ids of the files with the results, or None.
        output_s: seconds after which the client wants these files to be deleted. None for the server's
            default.
    """

    id: str
    account: Account
    owner: str
    status: Status
    input_file_id: str
    endpoint: str
    metadata: dict[str, str]
    made_us: int
    expires_us: int
    drop_us: int
    stamps: dict[str, int] = field(default_factory=dict[str, int])
    errors: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    total: int = 0
    completed: int = 0
    failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    output_s: int | None = None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


@dataclass(frozen=True, slots=True)
class LineResult:
    """Result of one request of a batch.

    Args:
        number: number of the request, from 0.
        is_error: whether the result belongs in the error file. Otherwise it belongs in the output file.
        body: line for this file.
    """

    number: int
    is_error: bool
    body: bytes
