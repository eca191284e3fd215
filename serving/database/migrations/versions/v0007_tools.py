"""Runs that wait for tool results, and the secret that signs tool call ids."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
only_adds = True


def upgrade() -> None:
    op.create_table(
        "suspended_run",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("drop_us", sa.BigInteger, nullable=False, comment="end of the wait"),
        sa.Column("seq", sa.BigInteger, nullable=False, comment="number of the newest event"),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="records of the run, without redaction"),
        sa.PrimaryKeyConstraint("run_id", name="suspended_run_pk"),
        comment="runs that wait for tool results; a row is deleted when its run is resumed",
    )
    op.create_index("suspended_run_drop_us", "suspended_run", ["drop_us"])
    op.create_table(
        "signing_secret",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("made_us", sa.BigInteger, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False, comment="secret that signs tool call ids"),
        sa.PrimaryKeyConstraint("name", name="signing_secret_pk"),
        comment="secrets that all replicas share; the newest signs, and the previous one is still accepted",
    )
