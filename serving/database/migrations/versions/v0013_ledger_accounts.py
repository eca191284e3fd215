"""Columns of the ledger for the deployment that answered a call, and for adjustments."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
only_adds = True

COLUMNS = (
    ("account", sa.Text, "deployment that answered; null if the worker has only one"),
    ("corrects", sa.BigInteger, "id of the entry that an adjustment corrects"),
    ("reason", sa.Text, "reason of an adjustment"),
)


def upgrade() -> None:
    for name, kind, comment in COLUMNS:
        op.add_column("ledger", sa.Column(name, kind, comment=comment))
