"""Conversations: which worker has their prompt cache, their runs, and the cost of each run by worker."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

KNOWN, WITHOUT_TEAM = "conversation IS NOT NULL", "team_id IS NULL"


def upgrade() -> None:
    """Create the tables, and add the column. Earlier runs have no conversation and no rows of costs."""
    op.add_column("run", sa.Column("conversation", sa.Text, comment="id of the conversation; null if none"))
    op.create_index(
        "run_conversation",
        "run",
        ["conversation", "made_us", "id"],
        sqlite_where=sa.text(KNOWN),
        postgresql_where=sa.text(KNOWN),
    )
    # an index must not have the name of a table
    if op.get_context().dialect.name == "postgresql":
        op.execute("ALTER INDEX run_cost RENAME TO run_by_cost")
    else:
        op.drop_index("run_cost", "run")
        op.create_index("run_by_cost", "run", ["cost"])
    op.create_table(
        "run_cost",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False, comment="empty for calls whose end was not recorded"),
        sa.Column(
            "part", sa.Text, nullable=False, comment="plan, answer, or step for all other calls of the run"
        ),
        sa.Column("day", sa.Integer, nullable=False, comment="day on which the run started, from 1970"),
        sa.Column("key_id", sa.Text),
        sa.Column("team_id", sa.Text),
        sa.Column("model", sa.Text, nullable=False, comment="requested model"),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("cache_write_tokens", sa.BigInteger, nullable=False),
        sa.Column(
            "cache_write_1h_tokens", sa.BigInteger, nullable=False, comment="part of cache_write_tokens"
        ),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.BigInteger, nullable=False, comment="sum of the known costs"),
        sa.Column("saved", sa.BigInteger, nullable=False, comment="what caches saved; may be negative"),
        sa.Column("unknown_costs", sa.Integer, nullable=False, comment="number of calls of unknown cost"),
        sa.CheckConstraint("part IN ('plan', 'answer', 'step')", name=op.f("run_cost_part_known")),
        sa.PrimaryKeyConstraint("run_id", "worker", "part", name="run_cost_pk"),
        comment="tokens and cost of a run by worker; removed with the run",
    )
    op.create_index("run_cost_day", "run_cost", ["day"])
    op.create_index("run_cost_team", "run_cost", ["team_id", "day"])
    op.create_index(
        "run_cost_key",
        "run_cost",
        ["key_id", "day"],
        sqlite_where=sa.text(WITHOUT_TEAM),
        postgresql_where=sa.text(WITHOUT_TEAM),
    )
    op.create_table(
        "prompt_cache",
        sa.Column("id", sa.Text, nullable=False, comment="hash of the conversation and its first messages"),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("deployment", sa.Text, nullable=False, comment="empty if the worker has only one"),
        sa.Column(
            "n_messages", sa.Integer, nullable=False, comment="messages of the conversation in the prompt"
        ),
        sa.Column("tail", sa.Text, nullable=False, comment="hash of the last user message among them"),
        sa.Column("tokens", sa.BigInteger, nullable=False, comment="input tokens of the last call"),
        sa.Column("answer_tokens", sa.Integer, nullable=False, comment="mean length of the answers"),
        sa.Column("turns", sa.Integer, nullable=False, comment="number of user turns"),
        sa.Column("lifetime", sa.Text, nullable=False, comment="5m, 1h, or empty for the provider's own"),
        sa.Column("written_us", sa.BigInteger, nullable=False),
        sa.Column("drop_us", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", "worker", name="prompt_cache_pk"),
        comment="which worker has the prompt cache of a conversation; no texts",
    )
    op.create_index("prompt_cache_drop_us", "prompt_cache", ["drop_us"])
