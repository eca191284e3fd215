"""Conversations and their items."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
only_adds = True
BIG = sa.BigInteger


def upgrade() -> None:
    op.create_table(
        "conversation",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text, nullable=False, comment="empty if the key has no team"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("changed_us", BIG, nullable=False),
        sa.Column("n_bytes", BIG, nullable=False, comment="total size of the items"),
        sa.Column("metadata", sa.Text, nullable=False, comment="JSON: metadata of the client"),
        sa.PrimaryKeyConstraint("id", name="conversation_pk"),
        comment="conversations that clients continue by id",
    )
    op.create_index("conversation_account", "conversation", ["team_id", "key_id"])
    op.create_index("conversation_changed_us", "conversation", ["changed_us"])
    op.create_table(
        "conversation_item",
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False, autoincrement=False, comment="position of the item"),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("turn", sa.Text, nullable=False, comment="id of the response, or empty"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("n_bytes", BIG, nullable=False),
        sa.Column("body", sa.LargeBinary, comment="JSON; null after the item was deleted"),
        sa.PrimaryKeyConstraint("conversation_id", "number", name="conversation_item_pk"),
        comment="items of conversations",
    )
    op.create_index("conversation_item_id", "conversation_item", ["conversation_id", "id"], unique=True)
    op.create_index("conversation_item_made_us", "conversation_item", ["made_us"])
