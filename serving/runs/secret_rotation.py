"""Replaces the secret that signs the ids of calls of tools, while routers go on. Knows its table, and no run."""

import secrets

from sqlalchemy import func, insert, select

from conductor.errors import BadTask
from serving.database.address import Address
from serving.database.migrate import open_database
from serving.database.schema import signing_secret
from serving.runs.rows import now_us
from serving.runs.suspended import ROTATE_S
from serving.runs.tool_ids import SECRET_BYTES


async def rotate_secret(address: Address) -> None:
    """Make a new secret. It signs after `ROTATE_S`, when every replica has read it; the ids that the one before
    has signed go on being believed, until the next rotation.

    Raises:
        BadTask: the newest secret does not sign yet. Of the newest two that are read, neither would be believed everywhere.
        StoreError: the store cannot be used, or has the schema of another version.
        StoreUnavailable: it is away.
    """
    at_us = now_us()
    made_us = at_us + int(ROTATE_S * 1_000_000)
    row = {"name": f"made-{made_us}", "made_us": made_us, "secret": secrets.token_bytes(SECRET_BYTES)}
    async with await open_database(address) as database, database.writing() as connection:
        newest_us = (await connection.execute(select(func.max(signing_secret.c.made_us)))).scalar() or 0
        if newest_us > at_us:
            wait_s = (newest_us - at_us) / 1_000_000
            raise BadTask(
                f"The secret was replaced a moment ago, and signs in {wait_s:.0f} s. Wait for that."
            )
        await connection.execute(insert(signing_secret).values(row))
