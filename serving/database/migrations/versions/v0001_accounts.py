"""Teams, keys, budgets, holds and the ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
only_adds = True
BIG = sa.BigInteger
SERIAL = BIG().with_variant(sa.Integer, "sqlite")
TRIGGERS = {
    "sqlite": [
        "CREATE TRIGGER ledger_keeps_rows BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'rows of the ledger stay'); END",
        "CREATE TRIGGER ledger_keeps_values BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'rows of the ledger stay'); END",
    ],
    "postgresql": [
        (
            "CREATE FUNCTION podium_ledger_stays() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'rows of the ledger stay' USING ERRCODE = 'integrity_constraint_violation'; END$$"
        ),
        "CREATE TRIGGER ledger_keeps_rows BEFORE UPDATE OR DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION podium_ledger_stays()",
        "CREATE TRIGGER ledger_keeps_all BEFORE TRUNCATE ON ledger FOR EACH STATEMENT EXECUTE FUNCTION podium_ledger_stays()",
    ],
}
"""Triggers that make the ledger append-only."""


def upgrade() -> None:
    make_accounts()
    make_windows()
    make_holds()
    make_ledger()
    for statement in TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)


def make_accounts() -> None:
    op.create_table(
        "team",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("off_us", BIG, comment="time at which the team was disabled; null if it is enabled"),
        sa.PrimaryKeyConstraint("id", name="team_pk"),
        sa.UniqueConstraint("name", name="team_name_unique"),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False, comment="SHA-256 of the key"),
        sa.Column("old_hash", sa.Text, comment="SHA-256 of the previous secret after a rotation"),
        sa.Column("old_until_us", BIG, comment="time until which the previous secret is accepted"),
        sa.Column("hint", sa.Text, nullable=False, comment="last characters of the key, to tell keys apart"),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text),
        sa.Column("scopes", sa.Text, nullable=False, comment="JSON array"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("expires_us", BIG),
        sa.Column("revoked_us", BIG),
        sa.PrimaryKeyConstraint("id", name="api_key_pk"),
        sa.UniqueConstraint("hash", name="api_key_hash_unique"),
        sa.UniqueConstraint("old_hash", name="api_key_old_hash_unique"),
        sa.ForeignKeyConstraint(["team_id"], ["team.id"], name="api_key_team_id_of_team"),
    )
    op.create_index("api_key_team_id", "api_key", ["team_id"])


def make_windows() -> None:
    op.create_table(
        "budget",
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("cap", BIG, nullable=False),
        sa.PrimaryKeyConstraint("subject", "period", name="budget_pk"),
        sa.CheckConstraint("period IN ('day', 'month')", name=op.f("budget_period_known")),
        sa.CheckConstraint("cap >= 0", name=op.f("budget_cap_not_negative")),
        comment="limits per day or month; spending without a limit is only counted",
    )
    op.create_table(
        "spend_window",
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("period", sa.Text, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False, comment="day or month, from 1970"),
        sa.Column("spent", BIG, nullable=False, server_default=sa.text("0")),
        sa.Column("held", BIG, nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("subject", "period", "starts", name="spend_window_pk"),
        sa.CheckConstraint("period IN ('day', 'month')", name=op.f("spend_window_period_known")),
        sa.CheckConstraint("held >= 0", name=op.f("spend_window_held_not_negative")),
        comment="amounts spent and held per day or month; the limits are in the table budget",
    )


def make_holds() -> None:
    op.create_table(
        "replica",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("lease_until_us", BIG, nullable=False, comment="by the clock of the database"),
        sa.Column("began_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name="replica_pk"),
    )
    op.create_table(
        "hold",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("call_no", sa.Integer, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("month", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("amount", BIG, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'open'")),
        sa.Column("owner", sa.Text, nullable=False, comment="replica that made the hold"),
        sa.Column("made_us", BIG, nullable=False),
        sa.Column("ended_us", BIG),
        sa.PrimaryKeyConstraint("id", name="hold_pk"),
        sa.CheckConstraint("amount >= 0", name=op.f("hold_amount_not_negative")),
        sa.CheckConstraint("state IN ('open', 'posted', 'voided', 'lost')", name=op.f("hold_state_known")),
        comment="maximum cost of each call, reserved before the call is sent",
    )
    is_open = sa.text("state = 'open'")
    op.create_index("hold_open", "hold", ["owner"], sqlite_where=is_open, postgresql_where=is_open)


def make_ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("id", SERIAL, sa.Identity(always=True), nullable=False),
        sa.Column("hold_id", sa.Text),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text),
        sa.Column("call_no", sa.Integer),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("team_id", sa.Text),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("month", sa.Integer, nullable=False),
        sa.Column("worker", sa.Text),
        sa.Column("amount", BIG, nullable=False),
        sa.Column("exact", sa.Integer, nullable=False, comment="0: the amount is an upper bound"),
        sa.Column("above_hold", sa.Integer, nullable=False, comment="1: the cost exceeded the hold"),
        sa.Column("input_tokens", BIG),
        sa.Column("output_tokens", BIG),
        sa.Column("cached_tokens", BIG),
        sa.Column("price", sa.Text, comment="price by which the cost was calculated"),
        sa.Column("at_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name="ledger_pk"),
        sa.CheckConstraint(
            "kind IN ('call', 'lost', 'correction', 'adjust')", name=op.f("ledger_kind_known")
        ),
        sa.UniqueConstraint("hold_id", "kind", name="ledger_hold_id_kind_unique"),
        comment="spending; rows are only added, never changed",
    )
    op.create_index("ledger_run_id", "ledger", ["run_id"])
    op.create_index("ledger_key_id_month", "ledger", ["key_id", "month"])
    op.create_index("ledger_team_id_month", "ledger", ["team_id", "month"])
