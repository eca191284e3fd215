"""The deployment that served a call, in the ledger; and what an adjustment corrects, and why."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

COLUMNS = (
    ("account", sa.Text, "the deployment of the worker that answered; null: it has one place"),
    ("corrects", sa.BigInteger, "the entry that an adjustment corrects"),
    ("reason", sa.Text, "of an adjustment"),
)


def upgrade() -> None:
    """Add the columns."""
    for name, kind, comment in COLUMNS:
        op.add_column("ledger", sa.Column(name, kind, comment=comment))
