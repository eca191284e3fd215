"""Watchers of runs, and tables to search runs by."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
only_adds = True


def upgrade() -> None:
    """Add the columns for watchers, and create the search tables. Earlier runs are not in them."""
    op.add_column(
        "run", sa.Column("watch_us", sa.BigInteger, comment="time at which a client first watched the run")
    )
    op.create_index("run_cost", "run", ["cost"])
    op.create_table(
        "run_worker",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("made_us", sa.BigInteger, nullable=False, comment="start of the run"),
        sa.PrimaryKeyConstraint("run_id", "worker", name="run_worker_pk"),
        comment="workers that a run has called, for filters; removed with the run",
    )
    op.create_index("run_worker_made", "run_worker", ["worker", "made_us"])
    op.create_table(
        "run_text",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False, comment="question and answer in lower case"),
        sa.PrimaryKeyConstraint("run_id", name="run_text_pk"),
        comment="text of a run for searches; removed with the texts of the run",
    )
