"""Current time by the database's clock, which leases and budgets of all routers use."""

from sqlalchemy import text

from serving.database.address import Address
from serving.database.database import Database

NOW = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
}


async def read_clock_s(address: Address) -> float:
    """Return the time of the database at `address` in seconds since 1970.

    Raises:
        StoreError: the database rejects the connection.
        StoreUnavailable: the database cannot be reached.
    """
    async with Database(address) as database, database.reading() as connection:
        return float((await connection.execute(text(NOW[address.kind]))).scalar_one())
