"""Conversations and their items."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "conversation",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False, comment="empty: the key has none"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("changed_us", BIG, nullable=False),
        sa.Column("n_bytes", BIG, nullable=False, comment="of its items"),
        sa.Column("metadata", sa.Text, nullable=False, comment="JSON: the client's own"),
        sa.PrimaryKeyConstraint("id", name="conversation_pk"),
        comment="conversations that clients go on with by id",
    )
    op.create_index("conversation_account", "conversation", ["team_id", "key_id"])
    op.create_index("conversation_changed_us", "conversation", ["changed_us"])
    op.create_table(
        "conversation_item",
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False, comment="its place"),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("turn", sa.Text, nullable=False, comment="the response that it is of; empty: none"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("n_bytes", BIG, nullable=False),
        sa.Column("body", sa.LargeBinary, comment="JSON; null: it was deleted"),
        sa.PrimaryKeyConstraint("conversation_id", "number", name="conversation_item_pk"),
        comment="what was said in conversations",
    )
    op.create_index("conversation_item_id", "conversation_item", ["conversation_id", "id"], unique=True)
    op.create_index("conversation_item_made_us", "conversation_item", ["made_us"])
