"""Policies of teams and keys."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0002"
only_adds = True
COMMENTS = {"team": "JSON: policy of the team", "api_key": "JSON: policy of the key"}


def upgrade() -> None:
    """Add a policy to both tables. An empty policy limits nothing."""
    for table, comment in COMMENTS.items():
        column = sa.Column("policy", sa.Text, nullable=False, server_default=sa.text("'{}'"), comment=comment)
        op.add_column(table, column)
