"""The tables of the store. `migrations/` makes them; a test says that both agree.

Money is whole pico-dollars (`serving/accounts/money.py`). Times are microseconds since 1970, UTC, in columns
that end in `_us`; `day` and `month` are days and months since 1970, UTC. A subject is whom a budget is of:
`key:ID` or `team:ID`.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

NAMES = {
    "ix": "%(table_name)s_%(column_0_N_name)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_unique",
    "ck": "%(table_name)s_%(constraint_name)s",
    "fk": "%(table_name)s_%(column_0_N_name)s_of_%(referred_table_name)s",
    "pk": "%(table_name)s_pk",
}
"""How constraints are called, on both databases, so that a later version can change them."""
metadata = MetaData(naming_convention=NAMES)
Serial = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself in a column of exactly this type."""

team = Table(
    "team",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("made_us", BigInteger, nullable=False),
    Column("off_us", BigInteger, comment="since when none of its keys works; null: they work"),
)
api_key = Table(
    "api_key",
    metadata,
    Column("id", Text, primary_key=True),
    Column(
        "hash",
        Text,
        nullable=False,
        unique=True,
        comment="SHA-256 of the key; the key itself is kept nowhere",
    ),
    Column("old_hash", Text, unique=True, comment="of the key before it was rotated"),
    Column("old_until_us", BigInteger, comment="how long that one works too"),
    Column("hint", Text, nullable=False, comment="its last characters, to tell keys apart"),
    Column("name", Text, nullable=False),
    Column("team_id", Text, ForeignKey("team.id"), index=True),
    Column("scopes", Text, nullable=False, comment="a JSON list"),
    Column("made_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger),
    Column("revoked_us", BigInteger),
)
budget = Table(
    "budget",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("cap", BigInteger, nullable=False),
    CheckConstraint("period IN ('day', 'month')", name="period_known"),
    CheckConstraint("cap >= 0", name="cap_not_negative"),
    comment="what may be spent in each window; a subject without one is counted and not limited",
)
spend_window = Table(
    "spend_window",
    metadata,
    Column("subject", Text, primary_key=True),
    Column("period", Text, primary_key=True),
    Column("starts", Integer, primary_key=True, autoincrement=False, comment="the day or the month"),
    Column("spent", BigInteger, nullable=False, server_default=text("0")),
    Column("held", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint("period IN ('day', 'month')", name="period_known"),
    CheckConstraint("held >= 0", name="held_not_negative"),
    comment="what is spent and held; caps are in budget, so that a new one holds from then on",
)
replica = Table(
    "replica",
    metadata,
    Column("id", Text, primary_key=True),
    Column("lease_until_us", BigInteger, nullable=False, comment="by the database's clock"),
    Column("began_us", BigInteger, nullable=False),
)
hold = Table(
    "hold",
    metadata,
    Column("id", Text, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("call_no", Integer, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("team_id", Text),
    Column("day", Integer, nullable=False),
    Column("month", Integer, nullable=False),
    Column("worker", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    Column("owner", Text, nullable=False, comment="the replica that made it"),
    Column("made_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger),
    CheckConstraint("amount >= 0", name="amount_not_negative"),
    CheckConstraint("state IN ('open', 'posted', 'voided', 'lost')", name="state_known"),
    Index("hold_open", "owner", sqlite_where=text("state = 'open'"), postgresql_where=text("state = 'open'")),
    comment="the most that a call can cost, written before it is opened",
)
ledger = Table(
    "ledger",
    metadata,
    Column("id", Serial, Identity(always=True), primary_key=True),
    Column("hold_id", Text),
    Column("kind", Text, nullable=False),
    Column("run_id", Text, index=True),
    Column("call_no", Integer),
    Column("key_id", Text, nullable=False),
    Column("team_id", Text),
    Column("day", Integer, nullable=False),
    Column("month", Integer, nullable=False),
    Column("worker", Text),
    Column("amount", BigInteger, nullable=False),
    Column("exact", Integer, nullable=False, comment="0: an upper bound, what it truly cost is unknown"),
    Column("above_hold", Integer, nullable=False, comment="1: more than was held for it"),
    Column("input_tokens", BigInteger),
    Column("output_tokens", BigInteger),
    Column("cached_tokens", BigInteger),
    Column("price", Text, comment="by which it was counted"),
    Column("at_us", BigInteger, nullable=False),
    CheckConstraint("kind IN ('call', 'lost', 'correction', 'adjust')", name="kind_known"),
    UniqueConstraint("hold_id", "kind"),
    Index("ledger_key_id_month", "key_id", "month"),
    Index("ledger_team_id_month", "team_id", "month"),
    comment="what was spent; rows are added, never changed",
)
run = Table(
    "run",
    metadata,
    Column("id", Text, primary_key=True),
    Column("key_id", Text),
    Column("team_id", Text),
    Column("model", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("owner", Text, nullable=False, comment="the replica that runs it"),
    Column("made_us", BigInteger, nullable=False),
    Column("ended_us", BigInteger, comment="null: it is under way"),
    Column("cost", BigInteger, comment="so far; null: not known"),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("trace_id", Text),
    Column("kept", Integer, nullable=False, comment="1: it outlives its client and its replica"),
    Column("takes", Integer, nullable=False, server_default=text("0"), comment="how often it was taken over"),
    Column("cancel_us", BigInteger, comment="when somebody asked for its end"),
    Column("watch_us", BigInteger, comment="since when somebody follows it"),
    Column("body_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("numbers", LargeBinary, nullable=False, comment="the record without its texts"),
    Column("body", LargeBinary, comment="the record; null: under way, or its texts were removed"),
    CheckConstraint("body_bytes >= 0", name="body_bytes_not_negative"),
    Index("run_made", "made_us", "id"),
    Index("run_team", "team_id", "made_us", "id"),
    Index("run_key", "key_id", "made_us", "id"),
    Index("run_cost", "cost"),
    Index(
        "run_content",
        "team_id",
        "key_id",
        "made_us",
        "id",
        "body_bytes",
        sqlite_where=text("body_bytes > 0"),
        postgresql_where=text("body_bytes > 0"),
    ),
    Index(
        "run_under_way",
        "owner",
        sqlite_where=text("ended_us IS NULL"),
        postgresql_where=text("ended_us IS NULL"),
    ),
    comment="a row a run; lists read every column but the body",
)
run_worker = Table(
    "run_worker",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("worker", Text, primary_key=True),
    Column("made_us", BigInteger, nullable=False, comment="when the run began"),
    Index("run_worker_made", "worker", "made_us"),
    comment="the workers by which a run is found; goes with the run",
)
run_text = Table(
    "run_text",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("text", Text, nullable=False, comment="question and answer, in small letters"),
    comment="the words by which a run is found; goes with its texts",
)
idempotency = Table(
    "idempotency",
    metadata,
    Column("account", Text, primary_key=True, comment="whose; names of others are other names"),
    Column("name", Text, primary_key=True, comment="what the client calls its request"),
    Column("body_hash", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("drop_us", BigInteger, nullable=False, comment="from when on the name is free again"),
    Index("idempotency_drop_us", "drop_us"),
    comment="requests that run once, however often they are sent",
)
run_event = Table(
    "run_event",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("first_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("run_event_at", "at_us"),
    comment="what happened in a run, a row for each time it was written",
)
