"""Runs are found by the model that was asked without a look at all of them."""

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Make the index."""
    op.create_index("run_model", "run", ["model", "made_us", "id"])
