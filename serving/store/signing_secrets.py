"""Secrets that sign tool call ids. All replicas share them. They can be rotated without a restart."""

import secrets
from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select

from conductor.errors import BadTask
from serving.database.address import Address
from serving.database.clock import NOW_US, now_us
from serving.database.inserts import RowInsert
from serving.database.migrate import open_database
from serving.database.schema import signing_secret
from serving.database.writer import Operation
from serving.store.tool_ids import SECRET_BYTES

MOST_SECRETS = 2
"""Number of valid secrets: the current one, which signs new ids, and the previous one."""
SECRETS_S = 30.0
"""Seconds for which a replica caches the secrets."""
ROTATE_S = 2 * SECRETS_S
"""Seconds before a new secret is used for signing. By then, every replica accepts it."""
_newest = select(signing_secret).order_by(signing_secret.c.made_us.desc()).limit(MOST_SECRETS).subquery()
SECRETS = select(_newest.c.secret).order_by(_newest.c.made_us > NOW_US, _newest.c.made_us.desc())
FIRST_SECRET = RowInsert(signing_secret, ["name", "made_us", "secret"])


def _secrets(connection: Connection, items: Sequence[None]) -> list[list[bytes]]:
    newest = list(connection.execute(SECRETS).scalars())
    if not newest:
        FIRST_SECRET.execute(connection, [("first", now_us(), secrets.token_bytes(SECRET_BYTES))])
        newest = list(connection.execute(SECRETS).scalars())
    return [newest] * len(items)


READ_SECRETS: Operation[None, list[bytes]] = Operation("secrets of tool call ids", _secrets)
"""Reads the secrets of tool call ids, the signing one first, which is created if there is none."""


async def rotate_secret(address: Address) -> None:
    """Create a new secret, which signs after `ROTATE_S` seconds, when every replica has read it.

    Ids of the previous secret stay valid until the next rotation, so another one before that raises BadTask.
    """
    at_us = now_us()
    made_us = at_us + int(ROTATE_S * 1_000_000)
    row = {"name": f"made-{made_us}", "made_us": made_us, "secret": secrets.token_bytes(SECRET_BYTES)}
    async with await open_database(address) as database, database.writing() as connection:
        newest_us = (await connection.execute(select(func.max(signing_secret.c.made_us)))).scalar() or 0
        if newest_us > at_us:
            wait_s = (newest_us - at_us) / 1_000_000
            raise BadTask(f"The previous rotation takes effect in {wait_s:.0f} s. Rotate again after that.")
        await connection.execute(insert(signing_secret).values(row))
