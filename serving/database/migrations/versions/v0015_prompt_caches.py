"""Prompt caches: what a provider has cached, and for how many turns it must last an hour."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
only_adds = True


def upgrade() -> None:
    """Add the columns. No cache is expected from earlier rows, which are removed after a day."""
    columns = (
        sa.Column(
            "prefix",
            sa.Text,
            nullable=False,
            server_default=sa.text("''"),
            comment="hash of all that is cached",
        ),
        sa.Column(
            "cached_tokens",
            sa.BigInteger,
            nullable=False,
            server_default=sa.text("0"),
            comment="as the provider reported",
        ),
        sa.Column(
            "quick_turns",
            sa.Integer,
            nullable=False,
            server_default=sa.text("0"),
            comment="user turns without a long pause",
        ),
    )
    for column in columns:
        op.add_column("prompt_cache", column)
