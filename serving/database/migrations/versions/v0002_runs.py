"""Runs and their events."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
only_adds = True
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text),
        sa.Column("team_id", sa.Text),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False, comment="replica that executes the run"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("ended_us", BIG, comment="null while the run is active"),
        sa.Column("cost", BIG, comment="cost so far; null if it is unknown"),
        sa.Column("input_tokens", BIG, nullable=False),
        sa.Column("output_tokens", BIG, nullable=False),
        sa.Column("trace_id", sa.Text),
        sa.Column("kept", sa.Integer, nullable=False, comment="1: the run outlives its client and replica"),
        sa.Column(
            "takes",
            sa.Integer,
            nullable=False,
            server_default=sa.text("0"),
            comment="number of takeovers of the run",
        ),
        sa.Column("cancel_us", BIG, comment="time of the first cancel request"),
        sa.Column("body_bytes", BIG, nullable=False, server_default=sa.text("0")),
        sa.Column("numbers", sa.LargeBinary, nullable=False, comment="record without its texts"),
        sa.Column("body", sa.LargeBinary, comment="record; null if active or without texts"),
        sa.PrimaryKeyConstraint("id", name="run_pk"),
        sa.CheckConstraint("body_bytes >= 0", name=op.f("run_body_bytes_not_negative")),
        comment="one row per run; lists read every column except body",
    )
    op.create_index("run_made", "run", ["made_us", "id"])
    op.create_index("run_team", "run", ["team_id", "made_us", "id"])
    op.create_index("run_key", "run", ["key_id", "made_us", "id"])
    has_content = sa.text("body_bytes > 0")
    op.create_index(
        "run_content",
        "run",
        ["team_id", "key_id", "made_us", "id", "body_bytes"],
        sqlite_where=has_content,
        postgresql_where=has_content,
    )
    is_open = sa.text("ended_us IS NULL")
    op.create_index("run_under_way", "run", ["owner"], sqlite_where=is_open, postgresql_where=is_open)
    op.create_table(
        "run_event",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("first_seq", BIG, nullable=False),
        sa.Column("last_seq", BIG, nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "first_seq", name="run_event_pk"),
        comment="events of runs; one row per write",
    )
    op.create_index("run_event_at", "run_event", ["at_us"])
    op.create_table(
        "idempotency",
        sa.Column("account", sa.Text, nullable=False, comment="id of the account"),
        sa.Column("name", sa.Text, nullable=False, comment="idempotency key"),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False, comment="replica that starts the run"),
        sa.Column("drop_us", BIG, nullable=False, comment="expiry of the claim"),
        sa.PrimaryKeyConstraint("account", "name", name="idempotency_pk"),
        comment="requests that run only once, even if they are repeated",
    )
    op.create_index("idempotency_drop_us", "idempotency", ["drop_us"])
