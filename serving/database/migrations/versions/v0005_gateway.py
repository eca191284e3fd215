"""Cached answers, and budget alerts."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
only_adds = True
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "cached_answer",
        sa.Column("owner", sa.Text, nullable=False, comment="id of the team or the key"),
        sa.Column("asked", sa.Text, nullable=False, comment="hash of the request"),
        sa.Column("run_id", sa.Text, nullable=False, comment="run that has the answer"),
        sa.Column("drop_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("owner", "asked", name="cached_answer_pk"),
        comment="runs whose answers are reused for equal requests of the same team",
    )
    op.create_index("cached_answer_drop_us", "cached_answer", ["drop_us"])
    op.create_table(
        "budget_alert",
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False, comment="day or month, from 1970"),
        sa.Column("percent", sa.Integer, nullable=False, comment="threshold in percent"),
        sa.Column("cap", BIG, nullable=False),
        sa.Column("spent", BIG, nullable=False),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("next_us", BIG, nullable=False, comment="time of the next attempt"),
        sa.Column("done_us", BIG, comment="end of the delivery; null until then"),
        sa.PrimaryKeyConstraint("subject", "period", "starts", "percent", name="budget_alert_pk"),
        comment="alerts for budget thresholds; each threshold is recorded once per day or month",
    )
    is_open = sa.text("done_us IS NULL")
    op.create_index(
        "budget_alert_open", "budget_alert", ["next_us"], sqlite_where=is_open, postgresql_where=is_open
    )
