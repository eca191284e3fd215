"""Index to find runs by the requested model."""

from alembic import op

revision = "0011"
down_revision = "0010"
only_adds = True


def upgrade() -> None:
    op.create_index("run_model", "run", ["model", "made_us", "id"])
