"""Circuits of workers that fail at a replica, shared with the other replicas."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
only_adds = True


def upgrade() -> None:
    op.create_table(
        "circuit",
        sa.Column("identity", sa.Text, nullable=False, comment="hash of name, kind, model and address"),
        sa.Column("owner", sa.Text, nullable=False, comment="replica that opened the circuit"),
        sa.Column("worker", sa.Text, nullable=False, comment="name of the worker and its deployment"),
        sa.Column("since_us", sa.BigInteger, nullable=False, comment="by the clock of the database"),
        sa.Column("until_us", sa.BigInteger, nullable=False, comment="time of the next probe"),
        sa.PrimaryKeyConstraint("identity", "owner", name="circuit_pk"),
        comment="open circuits of replicas; removed when the worker answers, or some time after until_us",
    )
