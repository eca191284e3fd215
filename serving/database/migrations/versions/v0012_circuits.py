"""Circuits of workers that fail at a replica, shared with the other replicas."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "circuit",
        sa.Column(
            "identity",
            sa.Text,
            nullable=False,
            comment="a hash of the worker's name, kind, model and address",
        ),
        sa.Column("owner", sa.Text, nullable=False, comment="the replica that opened it"),
        sa.Column(
            "worker",
            sa.Text,
            nullable=False,
            comment="its name, and that of the deployment where it has several",
        ),
        sa.Column("since_us", sa.BigInteger, nullable=False, comment="by the database's clock"),
        sa.Column("until_us", sa.BigInteger, nullable=False, comment="when the owner tries again, likewise"),
        sa.PrimaryKeyConstraint("identity", "owner", name="circuit_pk"),
        comment="workers that fail at a replica; gone when they answer it, or a while after until_us",
    )
