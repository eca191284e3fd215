"""Files and batches as they are kept. Times are microseconds since 1970, UTC."""

from dataclasses import dataclass, field
from typing import Any, Literal

from conductor.run.record import Account

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]  # fmt: skip
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""Some replica works on these."""


@dataclass(frozen=True, slots=True)
class File:
    """A file without its content.

    Args:
        id: as clients name it.
        account: whose.
        purpose: `batch`, `batch_output` for what a batch wrote, `user_data` for what requests name.
        name: as the client calls it.
        n_bytes: of the content, as it is kept.
        made_us: when it came.
        drop_us: until when it is kept.
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
    """A batch.

    Args:
        id: as clients name it.
        account: who pays for its lines, and by whose policy they run.
        owner: the replica that works on it.
        status: how far it is.
        input_file_id: its lines.
        endpoint: where each of them is sent.
        metadata: the client's own.
        made_us: when it was asked for.
        expires_us: lines that have not begun by then are not run.
        drop_us: until when it is kept.
        stamps: when each status was reached.
        errors: why it failed.
        total: lines; 0: not counted yet.
        completed, failed: lines, once all have ended.
        output_file_id, error_file_id: what it wrote.
        output_s: how long that is kept at most, as the client asked; None: as long as any file.
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
        """Whether a replica works on it."""
        return self.status in OPEN


@dataclass(frozen=True, slots=True)
class LineResult:
    """What became of a line.

    Args:
        number: of the line, from 0.
        is_error: it goes to the error file.
        body: its line there or in the output file.
    """

    number: int
    is_error: bool
    body: bytes
