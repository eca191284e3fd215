"""What time it is for the database: leases and budgets of all routers go by it."""

from sqlalchemy import text

from serving.database.address import Address
from serving.database.database import Database

NOW = {
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
}


async def read_clock_s(address: Address) -> float:
    """Seconds since 1970 by the clock of the database at `address`.

    Raises:
        StoreError: it refuses us.
        StoreUnavailable: it is away.
    """
    async with Database(address) as database, database.reading() as connection:
        return float((await connection.execute(text(NOW[address.kind]))).scalar_one())
