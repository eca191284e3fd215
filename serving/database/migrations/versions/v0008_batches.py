"""Files, batches, and batch lines that have ended."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
only_adds = True
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False, comment="empty if the key has no team"),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("n_bytes", BIG, nullable=False),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("drop_us", BIG, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="stored_file_pk"),
        comment="input and output files of batches, and uploaded files",
    )
    op.create_index("stored_file_drop_us", "stored_file", ["drop_us"])
    op.create_index("stored_file_account", "stored_file", ["team_id", "key_id", "made_us"])
    op.create_table(
        "batch",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False, comment="empty if the key has no team"),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False, comment="replica that works on the batch"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("drop_us", BIG, nullable=False),
        sa.Column("body", sa.Text, nullable=False, comment="JSON: complete state of the batch"),
        sa.PrimaryKeyConstraint("id", name="batch_pk"),
        comment="batches of requests",
    )
    op.create_index("batch_status", "batch", ["status"])
    op.create_index("batch_account", "batch", ["team_id", "key_id", "made_us"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False, comment="line number, from 0"),
        sa.Column("is_error", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="line of the output or error file"),
        sa.PrimaryKeyConstraint("batch_id", "number", name="batch_line_pk"),
        comment="results of lines, until their batch has ended",
    )
