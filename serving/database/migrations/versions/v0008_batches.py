"""Files, batches, and batch lines that have ended."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "stored_file",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False, comment="empty: the key has none"),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("n_bytes", BIG, nullable=False),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("drop_us", BIG, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("id", name="stored_file_pk"),
        comment="requests of batches, and what became of them",
    )
    op.create_index("stored_file_drop_us", "stored_file", ["drop_us"])
    op.create_index("stored_file_account", "stored_file", ["team_id", "key_id", "made_us"])
    op.create_table(
        "batch",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False, comment="empty: the key has none"),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False, comment="the replica that works on it"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("drop_us", BIG, nullable=False),
        sa.Column("body", sa.Text, nullable=False, comment="JSON: all of it"),
        sa.PrimaryKeyConstraint("id", name="batch_pk"),
        comment="files of requests that are run line by line",
    )
    op.create_index("batch_status", "batch", ["status"])
    op.create_index("batch_account", "batch", ["team_id", "key_id", "made_us"])
    op.create_table(
        "batch_line",
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False, comment="from 0"),
        sa.Column("is_error", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="its line in the output or the error file"),
        sa.PrimaryKeyConstraint("batch_id", "number", name="batch_line_pk"),
        comment="lines that have ended, of batches that have not",
    )
