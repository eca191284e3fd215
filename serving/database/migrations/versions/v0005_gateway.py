"""Cached answers, and budget alerts."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "cached_answer",
        sa.Column("owner", sa.Text, nullable=False, comment="whose; others are never given it"),
        sa.Column("asked", sa.Text, nullable=False, comment="a hash of the request and of the settings"),
        sa.Column("run_id", sa.Text, nullable=False, comment="whose record has the answer"),
        sa.Column("drop_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("owner", "asked", name="cached_answer_pk"),
        comment="which run answers equal requests of the same team",
    )
    op.create_index("cached_answer_drop_us", "cached_answer", ["drop_us"])
    op.create_table(
        "budget_alert",
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False, comment="the day or the month"),
        sa.Column("percent", sa.Integer, nullable=False, comment="of the budget that is spent"),
        sa.Column("cap", BIG, nullable=False),
        sa.Column("spent", BIG, nullable=False),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("next_us", BIG, nullable=False, comment="when it is sent, or taken for lost on its way"),
        sa.Column("done_us", BIG, comment="when it was taken, or given up; null: it is to be sent"),
        sa.PrimaryKeyConstraint("subject", "period", "starts", "percent", name="budget_alert_pk"),
        comment="each threshold of a budget that was passed, once in its day or month",
    )
    is_open = sa.text("done_us IS NULL")
    op.create_index(
        "budget_alert_open", "budget_alert", ["next_us"], sqlite_where=is_open, postgresql_where=is_open
    )
