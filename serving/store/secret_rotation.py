"""Rotation of the secret that signs tool call ids, without a restart of the routers."""

import secrets

from sqlalchemy import func, insert, select

from conductor.errors import BadTask
from serving.database.address import Address
from serving.database.clock import now_us
from serving.database.migrate import open_database
from serving.database.schema import signing_secret
from serving.store.suspended import ROTATE_S
from serving.store.tool_ids import SECRET_BYTES


async def rotate_secret(address: Address) -> None:
    """Create a new secret. It starts to sign after `ROTATE_S`, when every replica has read it.

    Ids that the previous secret signed remain valid until the next rotation.

    Raises:
        BadTask: the newest secret does not sign yet. A further one would push out the secret that signs now.
        StoreError: the store cannot be used, or has the schema of another version.
        StoreUnavailable: the store is unreachable.
    """
    at_us = now_us()
    made_us = at_us + int(ROTATE_S * 1_000_000)
    row = {"name": f"made-{made_us}", "made_us": made_us, "secret": secrets.token_bytes(SECRET_BYTES)}
    async with await open_database(address) as database, database.writing() as connection:
        newest_us = (await connection.execute(select(func.max(signing_secret.c.made_us)))).scalar() or 0
        if newest_us > at_us:
            wait_s = (newest_us - at_us) / 1_000_000
            raise BadTask(f"The previous rotation takes effect in {wait_s:.0f} s. Retry after that.")
        await connection.execute(insert(signing_secret).values(row))
