"""Feedback on runs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
only_adds = True


def upgrade() -> None:
    op.create_table(
        "run_feedback",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False, comment="key; empty without keys"),
        sa.Column("made_us", sa.BigInteger, nullable=False, comment="time of the newest feedback"),
        sa.Column("score", sa.Float, comment="from 0 to 1; null if there is no score"),
        sa.Column("labels", sa.Text, nullable=False, comment="JSON array"),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("expected", sa.Text, nullable=False, comment="correct answer"),
        sa.PrimaryKeyConstraint("run_id", "key_id", name="run_feedback_pk"),
        comment="feedback on runs; its texts are removed with the texts of the run, the rest with the run",
    )
    op.create_index("run_feedback_made_us", "run_feedback", ["made_us"])
