"""Stored files and batches. Times are microseconds since 1970 (UTC)."""

from dataclasses import dataclass, field
from typing import Any, Literal

from conductor.run.record import Account

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]  # fmt: skip
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""Statuses of batches that a replica is working on."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """File without its content.

    Args:
        id: public id.
        account: account that owns it.
        purpose: `batch`, `batch_output` for results of a batch, or `user_data` for files that requests refer
            to.
        name: name given by the client.
        n_bytes: size of the stored content.
        made_us: time of creation.
        drop_us: time until which it is kept.
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
        id: public id.
        account: account that pays for its lines and whose policy applies to them.
        owner: replica that works on it.
        status: current status.
        input_file_id: file with its lines.
        endpoint: endpoint to which each line is sent.
        metadata: metadata of the client.
        made_us: time of creation.
        expires_us: time after which no more lines are started.
        drop_us: time until which it is kept.
        stamps: time at which each status was reached.
        errors: reasons why it failed.
        total: number of lines. 0: not counted yet.
        completed, failed: numbers of lines, once all have ended.
        output_file_id, error_file_id: files with its results.
        output_s: maximum time for which these are kept, set by the client. None: as long as any file.
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
        """True if a replica is working on it."""
        return self.status in OPEN


@dataclass(frozen=True, slots=True)
class LineResult:
    """Result of a line.

    Args:
        number: number of the line, from 0.
        is_error: whether it belongs in the error file.
        body: line for the output or error file.
    """

    number: int
    is_error: bool
    body: bytes
