"""Runs that wait for tool results, and the secret that signs tool call ids."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "suspended_run",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("drop_us", sa.BigInteger, nullable=False, comment="until when it waits"),
        sa.Column("seq", sa.BigInteger, nullable=False, comment="of the newest item that has happened in it"),
        sa.Column("body", sa.LargeBinary, nullable=False, comment="all of the run, exactly as it was"),
        sa.PrimaryKeyConstraint("run_id", name="suspended_run_pk"),
        comment="runs that wait for results of tools; gone once they are resumed",
    )
    op.create_index("suspended_run_drop_us", "suspended_run", ["drop_us"])
    op.create_table(
        "signing_secret",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("made_us", sa.BigInteger, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False, comment="signs the ids of calls of tools"),
        sa.PrimaryKeyConstraint("name", name="signing_secret_pk"),
        comment="secrets that all replicas share; the newest signs, the one before is still believed",
    )
