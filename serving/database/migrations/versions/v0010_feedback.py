"""Feedback on runs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "run_feedback",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False, comment="whose; empty: no key was asked for"),
        sa.Column("made_us", sa.BigInteger, nullable=False, comment="when it was given last"),
        sa.Column("score", sa.Float, comment="from 0 to 1; null: none"),
        sa.Column("labels", sa.Text, nullable=False, comment="a JSON list"),
        sa.Column("comment", sa.Text, nullable=False),
        sa.Column("expected", sa.Text, nullable=False, comment="what had been the right answer"),
        sa.PrimaryKeyConstraint("run_id", "key_id", name="run_feedback_pk"),
        comment="what people say of runs; its texts go with the run's texts, the rest with the run",
    )
    op.create_index("run_feedback_made_us", "run_feedback", ["made_us"])
